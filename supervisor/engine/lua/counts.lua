#!lua flags=no-writes
-- counts.lua — how many jobs lie in each state of some queues.
--
-- Called by: looks.counts (supervisor/engine/looks.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   offset: without queues, 1,000 of the known ones from here on, in the order in which they were first put to
-- ARGV[3..] queues
--
-- Returns   array, one array per queue: queue, waiting (with the front, all lanes, what is due, and entries), running,
--           stalled, scheduled, depends, parked, recurring (jobs that recur, not what came of them), 1 if it is paused
--           else 0.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include clock
--- @include config
local offset, queues, answer = tonumber(ARGV[2]), { unpack(ARGV, 3) }, {}
if #queues == 0 then queues = redis.call("ZRANGE", P .. "queues", offset, offset + 999) end

local function size(queue, part) return redis.call("ZCARD", queue_key(queue, part)) end
local function past(queue, part) return redis.call("ZCOUNT", queue_key(queue, part), "-inf", now) end

local function waiting(queue)
  local in_lanes = tonumber(redis.call("GET", P .. "laned:" .. queue) or 0)
  return size(queue, "waiting") + size(queue, "front") + in_lanes + redis.call("LLEN", P .. "in:" .. queue)
end

for i, queue in ipairs(queues) do
  local stalled, due = past(queue, "running"), past(queue, "scheduled")
  answer[i] = {
    queue, waiting(queue) + due, size(queue, "running") - stalled, stalled, size(queue, "scheduled") - due,
    size(queue, "depends"), size(queue, "parked"), size(queue, "recurring"),
    setting("paused", queue) > 0 and 1 or 0,
  }
end
return answer
