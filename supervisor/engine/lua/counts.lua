#!lua flags=no-writes
-- counts.lua — how many jobs lie in each state of some queues.
--
-- Called by: commands.counts (supervisor/engine/commands.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2..] queues; none = all that are known, in the order in which they were first put to
--
-- Returns   array, one array per queue: queue, waiting (with the front and what is due), running, stalled, scheduled.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include clock
--- @include keys
local queues, answer = { unpack(ARGV, 2) }, {}
if #queues == 0 then queues = redis.call("ZRANGE", P .. "queues", 0, -1) end
for i, queue in ipairs(queues) do
  local waiting = redis.call("ZCARD", queue_key(queue, "waiting")) + redis.call("ZCARD", queue_key(queue, "front"))
  local running, scheduled = queue_key(queue, "running"), queue_key(queue, "scheduled")
  local stalled, due = redis.call("ZCOUNT", running, "-inf", now), redis.call("ZCOUNT", scheduled, "-inf", now)
  answer[i] = {
    queue, waiting + due, redis.call("ZCARD", running) - stalled, stalled, redis.call("ZCARD", scheduled) - due,
  }
end
return answer
