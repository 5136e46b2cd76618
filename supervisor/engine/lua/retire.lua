#!lua flags=allow-oom
-- retire.lua — forget a worker that has nothing to do, unless there is something that it would be needed for soon.
--
-- Called by: commands.retire (supervisor/engine/commands/writes.py)
-- Holds:     a put before it keeps the worker, one after it leaves its token in the bell: nobody waits there any more
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker, which waits for no bell now
-- ARGV[3]   how soon is soon, ms
-- ARGV[4..] queues that it serves
--
-- Returns   "" if it is forgotten; else why it stays: "held" (it has leases), "mail" (there are hints for it), "asked"
--           (a question waits for its answer), "lost" (there are leases that have run out), "work" (something could be
--           leased), "soon" (something is due by then), "watch" (others work, and no other has nothing to do: who works
--           may be lost, all of a host at once, and somebody must be there to take their jobs over).
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include clock
--- @include allowed
--- @include depths
--- @include events
--- @include apart
--- @include lives
local worker, horizon = ARGV[2], now + tonumber(ARGV[3])
local WORKERS = 100 -- that are looked at

local function is_asked()
  for _, question in ipairs(redis.call("LRANGE", P .. "asks:" .. worker, 0, -1)) do
    if tonumber(string.match(question, "^%d+") or 0) > now then return true end
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

-- Whether another lives, and so sweeps, that has nothing to do. Who only leases, by the client, takes nothing over.
local function another_watches()
  for _, name in ipairs(redis.call("ZREVRANGEBYSCORE", P .. "workers", "+inf", now - LIVES, "LIMIT", 0, WORKERS)) do
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
  if running > 0 and not another_watches() then return "watch" end
end

local why = why_stay()
if why then return why end
place(P .. "workers", worker, false)
drop(P .. "worker:" .. worker)
apart.forget(worker, {})
drop(P .. "asks:" .. worker)
announce("worker.deregistered", { worker = worker, handed_back = 0 })
commit()
return ""
