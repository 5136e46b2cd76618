#!lua flags=no-writes
-- workers.lua — the workers, and how many leases each holds.
--
-- Called by: workers.read (supervisor/engine/commands/workers.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   offset: number of workers to skip
-- ARGV[3]   count, the most workers to return
--
-- Returns   array, one array per worker, the most recently seen first: name, seen in ms, how many of its leases run,
--           how many have expired, for how many ms it was not seen, an array of the klasses that it has handlers for,
--           one of the queues that it serves, and its release | nil. At most 10,000 leases are read; those beyond
--           count as running. Of all workers together 10,000 klasses and queues are returned.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include held
local offset, count, room, names, answer = tonumber(ARGV[2]), tonumber(ARGV[3]), 10000, 10000, {}
local least = "(" .. string.format("%d", last_seen_least())
local seen = redis.call("ZREVRANGEBYSCORE", P .. "workers-seen", "+inf", least, "WITHSCORES", "LIMIT", offset, count)
for i = 1, #seen, 2 do
  local running, stalled = held_by(seen[i], room - 1)
  room = math.max(room - #running - #stalled, 1)
  local total = redis.call("ZCARD", P .. "held:" .. seen[i])
  local klasses, queues = skills_of(seen[i], names)
  names = names - #klasses - #queues
  answer[#answer + 1] = {
    seen[i], tonumber(seen[i + 1]), total - #stalled, #stalled, math.max(now - seen[i + 1], 0), klasses,
    queues, redis.call("HGET", P .. "worker:" .. seen[i], "release"),
  }
end
return answer
