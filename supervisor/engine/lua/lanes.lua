#!lua flags=no-writes
-- lanes.lua — the lanes of a queue with their settings and their numbers of jobs.
--
-- Called by: lanes.read (supervisor/engine/commands/lanes.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
-- ARGV[3]   "=" and the name of one lane; "" = all
-- ARGV[4]   offset: number of lanes to skip
-- ARGV[5]   count, the most lanes to return
--
-- Returns   array, one array per lane: lane ("" = the jobs without one), waiting (with those in front), running,
--           stalled, parked, weight, and 0 unless the lane is paused: 1, or since when in ms, ":" and who paused it.
--           10,000 jobs in front and 10,000 running ones are counted. A named lane is returned even if it does not
--           exist.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include lane_names
--- @include stored
local queue, offset, count = ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
local MOST_READ = 10000

local function new_counts() return { waiting = 0, running = 0, stalled = 0 } end

local counts = {}
local function add(jids, what)
  for _, found in ipairs(peek(jids, "lane")) do
    local lane = found[1] or ""
    counts[lane] = counts[lane] or new_counts()
    counts[lane][what] = counts[lane][what] + 1
  end
end

add(redis.call("ZRANGE", queue_key(queue, "front"), 0, MOST_READ - 1), "waiting")
local leased = redis.call("ZRANGE", queue_key(queue, "running"), 0, MOST_READ - 1, "WITHSCORES")
local running, stalled = {}, {}
for i = 1, #leased, 2 do table.insert(tonumber(leased[i + 1]) <= now and stalled or running, leased[i]) end
add(running, "running")
add(stalled, "stalled")

local limited = redis.call("ZRANGE", queue_key(queue, "limits"), 0, -1)
for i, key in ipairs(limited) do limited[i] = P .. "limited:" .. key .. "\n" .. queue end

local apart = redis.call("ZRANGE", queue_key(queue, "klasses"), 0, -1)
for i, klass in ipairs(apart) do apart[i] = P .. "apart:" .. klass .. "\n" .. queue end

local function lying_in(indexes, lane)
  local n = 0
  for _, index in ipairs(indexes) do n = n + redis.call("ZCARD", index .. "\n" .. lane) end
  return n
end

local function names()
  if ARGV[3] ~= "" then return { string.sub(ARGV[3], 2) } end
  local all, found = lane_names(queue)
  local function add_lane(lane)
    if not found[lane] then all[#all + 1], found[lane] = lane, true end
  end
  for _, indexes in ipairs({ limited, apart }) do
    for _, index in ipairs(indexes) do
      for _, lane in ipairs(redis.call("ZRANGE", index, 0, -1)) do
        --         The next lease removes the empty lanes.
        if redis.call("ZCARD", index .. "\n" .. lane) > 0 then add_lane(lane) end
      end
    end
  end
  for lane in pairs(counts) do add_lane(lane) end
  return { unpack(all, offset + 1, math.min(offset + count, #all)) }
end

local answer = {}
for i, lane in ipairs(names()) do
  local found = counts[lane] or new_counts()
  local lying = redis.call("ZCARD", lanes.line(queue, lane)) + lying_in(apart, lane)
  answer[i] = {
    lane, found.waiting + lying, found.running, found.stalled, lying_in(limited, lane), lanes.weight(queue, lane),
    lanes.pause_of(queue, lane) or 0,
  }
end
return answer
