#!lua flags=no-writes
-- lanes.lua — the lanes of a queue with their settings and their numbers of jobs.
--
-- Called by: lanes.read, lanes.names (supervisor/engine/commands/lanes.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
-- ARGV[3..] lanes, at most 1,000, known or not; none = all of the queue
--
-- Returns   array. Of named lanes seven values each: lane ("" = the jobs without one), waiting (with those in front),
--           running, stalled, parked, weight, and 0 unless the lane is paused: 1, or since when in ms, ":" and who
--           paused it. 10,000 jobs in front and 10,000 running ones are counted. Of all lanes: an array of the names
--           beyond the first 20,000, and lane and waiting of each other one.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include lane_names
--- @include parked
--- @include stored
local queue, MOST_READ, MOST_COUNTED = ARGV[2], 10000, 20000
local NONE = { waiting = 0, running = 0, stalled = 0 }

local counts = {}
local function add(jids, what)
  for _, found in ipairs(peek(jids, "lane")) do
    local lane = found[1] or ""
    counts[lane] = counts[lane] or { waiting = 0, running = 0, stalled = 0 }
    counts[lane][what] = counts[lane][what] + 1
  end
end

add(redis.call("ZRANGE", queue_key(queue, "front"), 0, MOST_READ - 1), "waiting")
local leased = redis.call("ZRANGE", queue_key(queue, "running"), 0, MOST_READ - 1, "WITHSCORES")
local running, stalled = {}, {}
for i = 1, #leased, 2 do table.insert(tonumber(leased[i + 1]) <= now and stalled or running, leased[i]) end
add(running, "running")
add(stalled, "stalled")

-- Return the lines with jobs apart or parked, by lane, and these lanes. `keys` names what they wait for.
local function lines_by_lane(kind, keys)
  local found, lanes_found, left = {}, {}, MOST_READ
  for _, key in ipairs(keys) do
    local name = kind .. key
    local lines = left > 0 and redis.call("ZRANGE", P .. name .. "\n" .. queue, 0, left - 1) or {}
    left = left - 1 - #lines
    for _, line in ipairs(lines) do
      local lane = parts_of(line)
      if not found[lane] then lanes_found[#lanes_found + 1], found[lane] = lane, {} end
      table.insert(found[lane], P .. line_in(name, queue, line))
    end
  end
  return found, lanes_found
end

local limited, limited_lanes = lines_by_lane("limited:", redis.call("ZRANGE", queue_key(queue, "limits"), 0, -1))
local apart, apart_lanes = lines_by_lane("apart:", redis.call("ZRANGE", queue_key(queue, "klasses"), 0, -1))

local function lying_in(lines)
  local n = 0
  for _, line in ipairs(lines or {}) do n = n + redis.call("ZCARD", line) end
  return n
end

local function all_names()
  local all, found = lane_names(queue)
  local function add_lane(lane)
    if not found[lane] then all[#all + 1], found[lane] = lane, true end
  end
  --   The next lease removes the empty ones.
  for _, lane in ipairs(limited_lanes) do
    if lying_in(limited[lane]) > 0 then add_lane(lane) end
  end
  for _, lane in ipairs(apart_lanes) do
    if lying_in(apart[lane]) > 0 then add_lane(lane) end
  end
  for lane in pairs(counts) do add_lane(lane) end
  return all
end

local function waiting_in(lane)
  local n = redis.call("ZCARD", lanes.line(queue, lane))
  if counts[lane] then n = n + counts[lane].waiting end
  return apart[lane] and n + lying_in(apart[lane]) or n
end

local function all_lanes()
  local answer, further = { {} }, {}
  for i, lane in ipairs(all_names()) do
    if i <= MOST_COUNTED then
      answer[2 * i], answer[2 * i + 1] = lane, waiting_in(lane)
    else
      further[i - MOST_COUNTED] = lane
    end
  end
  answer[1] = further
  return answer
end

if #ARGV == 2 then return all_lanes() end
local answer = {}
for _, lane in ipairs({ unpack(ARGV, 3) }) do
  local found = counts[lane] or NONE
  local row = {
    lane, waiting_in(lane), found.running, found.stalled, lying_in(limited[lane]), lanes.weight(queue, lane),
    lanes.pause_of(queue, lane) or 0,
  }
  for _, value in ipairs(row) do answer[#answer + 1] = value end
end
return answer
