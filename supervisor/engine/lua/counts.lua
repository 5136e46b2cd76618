#!lua flags=no-writes
-- counts.lua — how many jobs of some queues are in each state and, on demand, how many of them could be leased.
--
-- Called by: queue_counts.counts, queue_counts.depths (supervisor/engine/commands/queue_counts.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   offset: without queues, 1,000 known queues from here on, in the order of their first put
-- ARGV[3]   "1" to return the last five values of each queue
-- ARGV[4..] queues
--
-- Returns   array, one array per queue: queue, waiting (the front, all lanes, due jobs, jobs apart, parked jobs with
--           room again, and entries), running, stalled, scheduled, depends, parked, recurring (the recurrences, not
--           their jobs), and 0 unless the queue is paused: 1, or since when in ms, ":" and who paused it. On demand:
--           front, entries, how many waiting jobs could be leased now, the age of the oldest of those in ms (-1: there
--           is none), and how many jobs have been in state depends for more than a day.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include allowed
--- @include depths
--- @include freed
--- @include limits
--- @rest
local DAY_MS = 86400000
local offset, in_depth, queues, answer = tonumber(ARGV[2]), ARGV[3] == "1", { unpack(ARGV, 4) }, {}
if #queues == 0 then queues = redis.call("ZRANGE", P .. "queues", offset, offset + 999) end

local function size(queue, part) return redis.call("ZCARD", queue_key(queue, part)) end
local function past(queue, part) return redis.call("ZCOUNT", queue_key(queue, part), "-inf", now) end

local function pause_of(queue)
  if setting("paused", queue) <= 0 then return 0 end
  local set = redis.call("HMGET", P .. "options", "paused-" .. queue, "by:paused-" .. queue, "by:paused")
  if set[1] then return set[2] or 1 end
  return set[3] or 1
end

for i, queue in ipairs(queues) do
  local waiting, front, entries = in_line(queue)
  local stalled, due = past(queue, "running"), past(queue, "scheduled")
  local parked = size(queue, "parked")
  local could_start, heads = freed.count(queue, parked)
  waiting = waiting + due + size(queue, "apart") + could_start
  local row = {
    queue, waiting, size(queue, "running") - stalled, stalled, size(queue, "scheduled") - due, size(queue, "depends"),
    parked - could_start, size(queue, "recurring"), pause_of(queue),
  }
  if in_depth then
    row[10], row[11], row[12] = front, entries, allowed(queue, waiting - in_paused_lanes(queue), 0)
    row[13] = age_of_oldest(queue, #queues, heads)
    row[14] = redis.call("ZCOUNT", queue_key(queue, "depends"), "-inf", now - DAY_MS)
  end
  answer[i] = row
end
return answer
