#!lua flags=no-writes
-- limits.lua — the limits that are set, or one of any name, and the number of jobs that each holds up.
--
-- Called by: limits.read (supervisor/engine/commands/limits.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   key of one limit; "" = all
-- ARGV[2]   offset: number of limits to skip
-- ARGV[3]   count, the most limits to return
--
-- Returns   array, one array per limit in the order of their first setting: key, most running | nil, most starts in a
--           time | nil, that time in ms | nil, how many jobs run, how many are parked under it in the first 10,000
--           queues and lanes, when it was last set in ms, ":" and who set it | nil. Fewer than asked for are returned
--           where many queues and lanes were read, but one if there is any.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include parked
local MOST_READ, ENOUGH = 10000, 2000 -- queues and lanes: of one limit, and of those before the last of a reply
local offset, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local keys = { ARGV[1] }
if ARGV[1] == "" then keys = count > 0 and redis.call("ZRANGE", P .. "limits", offset, offset + count - 1) or {} end

local reads = 0
local function parked(key)
  local n, room = 0, MOST_READ
  for _, queue in ipairs(redis.call("ZRANGE", P .. "limited:" .. key, 0, MOST_READ / 2 - 1)) do
    if room <= 1 then break end
    local lines = redis.call("ZRANGE", P .. "limited:" .. key .. "\n" .. queue, 0, room - 2)
    room = room - 1 - #lines
    for _, line in ipairs(lines) do n = n + redis.call("ZCARD", P .. line_in("limited:" .. key, queue, line)) end
  end
  reads = reads + MOST_READ - room
  return n
end

local answer = {}
for i, key in ipairs(keys) do
  if reads > ENOUGH then break end
  local set = redis.call("HMGET", P .. "limit:" .. key, "running", "starts", "per", "by")
  answer[i] = { key, set[1], set[2], set[3], redis.call("ZCARD", P .. "holders:" .. key), parked(key), set[4] }
end
return answer
