-- queues.lua: idle queues. Such a queue has no jobs and no settings, and no door leads there.
--- @module
--- @include config
--- @include events
--- @include lanes
--- @include limits
--- @include apart
-- All that a queue has lies in one of these. The settings of its lanes count, too.
local PARTS = { "waiting", "front", "running", "scheduled", "depends", "parked", "apart", "recurring" }
local BESIDE = { "in:", "laned:", "lanes:" }

local function keys_of(queue)
  local keys = {}
  for i, part in ipairs(PARTS) do keys[i] = queue_key(queue, part) end
  for _, word in ipairs(BESIDE) do keys[#keys + 1] = P .. word .. queue end
  return keys
end

local function has_own_options(queue)
  if not layout.has_options then return false end
  local fields = { "klass-" .. queue }
  for option in pairs(OF_A_QUEUE) do fields[#fields + 1] = option .. "-" .. queue end
  for _, value in ipairs(redis.call("HMGET", P .. "options", unpack(fields))) do
    if value then return true end
  end
  return false
end

local behind_doors -- the queues to which doors lead

local function has_door(queue)
  if not behind_doors then
    behind_doors = {}
    for _, text in ipairs(redis.call("HVALS", P .. "doors")) do
      behind_doors[string.match(text, "^[^\n]*\n[^\n]*\n[^\n]*\n([^\n]*)\n") or ""] = true
    end
  end
  return behind_doors[queue]
end

-- Return whether a queue has no jobs, settings and doors, as it was before this script.
function queues.is_unused(queue)
  return redis.call("EXISTS", unpack(keys_of(queue))) == 0 and not has_own_options(queue) and not has_door(queue)
end

-- Remove a queue from the list of queues, with all that is kept of it beside jobs. Return whether it was known; nothing
-- if there is too much for one call, which has removed a part.
function queues.forget(queue)
  if not limits.forget(queue) then return nil end
  local is_known = redis.call("ZSCORE", P .. "queues", queue) ~= false
  place(P .. "queues", queue, false)
  place(P .. "idle", queue, false)
  place(P .. "quiet", queue, false)
  if redis.call("HEXISTS", P .. "announced", queue) == 1 then del_fields({ P .. "announced", queue }) end
  drop(P .. "bell:" .. queue)
  apart.forget_queue(queue)
  drop(lanes.index(queue))
  drop(P .. "lanes:" .. queue)
  if is_known then publish_event("queue.deleted", { queue = queue }) end
  return is_known
end

-- Queues that a worker serves by name count as used now.
function queues.keep(names)
  local since = #names > 0 and redis.call("ZMSCORE", P .. "idle", unpack(names)) or {}
  for i, queue in ipairs(names) do
    if since[i] then place(P .. "idle", queue, now) end
  end
end

-- Forget up to `most` of the queues that have been idle for long. Return whether there may be more.
function queues.forget_idle(most)
  local old = now - setting_ms("max-worker-age")
  local found = redis.call("ZRANGEBYSCORE", P .. "idle", "-inf", old, "LIMIT", 0, most)
  for _, queue in ipairs(found) do
    local since = score_of(P .. "idle", queue) -- nil: this script has put a job there
    if not queues.is_unused(queue) then
      place(P .. "idle", queue, false)
    elseif since and since <= old then
      queues.forget(queue)
    end
  end
  return #found == most
end
