#!lua flags=no-writes
-- find.lua — the ids of the jobs of one place that match a queue, a group, a klass and some states.
--
-- Called by: bulk.find (supervisor/engine/commands/bulk.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   place: "tag:" and a tag, "failed:" and a group, failed; or of the queue: waiting, front, scheduled,
--           depends, parked, apart, running, "lane:" and the name of one
-- ARGV[3]   queue; "" = any
-- ARGV[4]   states, a comma around each: waiting, scheduled, depends, parked, running, failed, complete
-- ARGV[5]   group; "" = any
-- ARGV[6]   klass; "" = any
-- ARGV[7]   offset from the end of the place
-- ARGV[8]   count, the most jobs to examine, 1 to 1000
--
-- Returns   array: size of the place, then jid, state, jid, state …, the last one first. Jobs leave a place at its
--           front, so counting from the end may return one twice but skips none.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include lanes
--- @include chosen
--- @include stored
local place_name, queue, states, group, klass = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local offset, count = tonumber(ARGV[7]), tonumber(ARGV[8])
local lane = string.match(place_name, "^lane:(.*)$")
local is_index = string.match(place_name, "^tag:") or string.match(place_name, "^failed")
local key = lane and lanes.line(queue, lane) or is_index and P .. place_name or queue_key(queue, place_name)
local has_number = lane or place_name == "waiting" or place_name == "scheduled"
local answer, jids = { redis.call("ZCARD", key) }, {}
for i, member in ipairs(redis.call("ZREVRANGE", key, offset, offset + count - 1)) do
  jids[i] = has_number and string.sub(member, 14) or member
end
for i, found in ipairs(peek(jids, "queue", "state", "parked", "group", "seq", "klass")) do
  local rec = {
    jid = jids[i], queue = found[1], state = found[2] or nil, parked = found[3], group = found[4] or "",
    seq = found[5], klass = found[6],
  }
  local as = rec.queue and chosen_as(rec, queue, states, group, klass)
  if as then
    answer[#answer + 1] = jids[i]
    answer[#answer + 1] = as
  end
end
return answer
