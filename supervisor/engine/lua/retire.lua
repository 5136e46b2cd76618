#!lua flags=allow-oom
-- retire.lua — forget an idle worker, unless it will be needed soon.
--
-- Called by: workers.retire (supervisor/engine/commands/workers.py)
-- Holds:     a put before it keeps the worker; a put after it leaves its token in the wake-up key
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker, which waits for no wake-up key now
-- ARGV[3]   the time that counts as soon, ms
-- ARGV[4..] queues that it serves
--
-- Returns   "" if the worker is forgotten; else why it stays: "held" (it has leases), "mail" (it has hints), "asked"
--           (it has an open request), "lost" (leases have expired), "work" (jobs could be leased), "soon" (jobs become
--           due by then), "watch" (other workers are busy and none is idle: they may be lost at once with their host,
--           and then a worker must take their jobs over).
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include allowed
--- @include depths
--- @include events
--- @include apart
--- @include lives
local worker, horizon = ARGV[2], now + tonumber(ARGV[3])
local WORKERS = 100 -- read by one call

local function is_asked()
  for _, request in ipairs(redis.call("LRANGE", P .. "asks:" .. worker, 0, -1)) do
    if tonumber(string.match(request, "^%d+") or 0) > now then return true end
  end
  return false
end

local function first_time(queue, part)
  return tonumber(redis.call("ZRANGE", queue_key(queue, part), 0, 0, "WITHSCORES")[2]) or math.huge
end

local function can_be_leased(queue)
  local waiting = in_line(queue) - in_paused_lanes(queue)
  local due = math.min(first_time(queue, "scheduled"), first_time(queue, "recurring"), first_time(queue, "limits"),
    first_time(queue, "klasses"))
  if allowed(queue, math.max(waiting, due <= now and 1 or 0), 0) > 0 then return "work" end
  return setting("paused", queue) == 0 and due > now and due <= horizon and "soon"
end

-- Return whether another idle worker lives, which sweeps. A client that only leases takes nothing over.
local function has_idle_peer()
  local seen = redis.call("ZREVRANGEBYSCORE", P .. "workers-seen", "+inf", now - LIVES, "LIMIT", 0, WORKERS)
  for _, name in ipairs(seen) do
    local is_idle = name ~= worker and redis.call("EXISTS", P .. "held:" .. name) == 0
    if is_idle and redis.call("HEXISTS", P .. "worker:" .. name, "number") == 1 then return true end
  end
  return false
end

local function why_stay()
  if redis.call("ZCARD", P .. "held:" .. worker) > 0 then return "held" end
  if redis.call("LLEN", P .. "mail:" .. worker) > 0 then return "mail" end
  if is_asked() then return "asked" end
  local running = 0
  for i = 4, #ARGV do
    local queue = ARGV[i]
    running = running + redis.call("ZCARD", queue_key(queue, "running"))
    local why = first_time(queue, "running") <= now and "lost" or can_be_leased(queue)
    if why then return why end
  end
  if running > 0 and not has_idle_peer() then return "watch" end
end

local why = why_stay()
if why then return why end
place(P .. "workers-seen", worker, false)
drop(P .. "worker:" .. worker)
apart.forget(worker, {})
drop(P .. "asks:" .. worker)
publish_event("worker.deregistered", { worker = worker, handed_back = 0 })
commit()
return ""
