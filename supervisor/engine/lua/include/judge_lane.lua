-- judge_lane.lua: judges the lines of lanes: the index by which leases find them, and the number of their jobs. An
-- empty line may stay in the index until its turn comes.
--- @include judge_place
local judge_lane = { lines = {}, counted = {} }
local MOST_LANES = 1000 -- whose sizes one call adds up

function judge_lane.least_time(index)
  local first = is_there(index, "zset") and redis.call("ZRANGE", P .. index, 0, 0, "WITHSCORES") or {}
  return number(first[2]) or 0
end

-- Return the virtual time of a line, if it is valid.
function judge_lane.time(index, line)
  local time = score_in(index, line)
  if not time or math.abs(time) < 2 ^ 53 then return end
  report("wrong-score", index, "has the line " .. line .. " at " .. tostring(time) .. ", which never comes",
    "gave it the next turn")
  local first = judge_lane.least_time(index)
  place(P .. index, line, math.abs(first) < 2 ^ 53 and first or 0)
end

-- As stored. The index gets what the plan makes of it at the end.
function judge_lane.line(queue, lane)
  local name = line_of(queue, lane)
  if judge_lane.lines[name] then return end
  local index, n = "queue:" .. queue .. ":lanes", size_in(name)
  local listed, paused = score_in(index, lane), value_in("lanes:" .. queue, "paused:" .. lane)
  judge_lane.lines[name] = { queue = queue, lane = lane, n = n, listed = listed, paused = paused }
  if paused and listed then
    report("stray-lane", name, "is paused, but leases come to it", "took it out of the index of lanes")
    place(P .. index, lane, false)
  elseif n > 0 and not paused and not listed then
    report("unlisted-lane", name, "has " .. n .. " jobs, but no lease comes to it", "put it into the index of lanes")
    read_and_wake(queue)
  end
end

function beside.lane(line)
  local queue, lane = string.match(line, "^([^\n]+)\n([^\n]+)$")
  if queue then judge_lane.line(queue, lane) end
end

-- Return the counter of jobs in lanes, if it is a valid number.
function judge_lane.count_of(queue)
  local name = "laned:" .. queue
  local text = is_there(name, "string") and redis.call("GET", P .. name)
  return text and whole(text) or types[name] == "none" and 0 or nil
end

mended_with[#mended_with + 1] = function()
  local added = {}
  for name, line in pairs(judge_lane.lines) do
    local n, index = size_after(name), P .. "queue:" .. line.queue .. ":lanes"
    added[line.queue] = (added[line.queue] or 0) + n - line.n
    if n > 0 and not line.paused and not line.listed then
      place(index, line.lane, judge_lane.least_time("queue:" .. line.queue .. ":lanes"))
    end
  end
  for queue, by in pairs(added) do
    local count = by ~= 0 and not judge_lane.counted[queue] and judge_lane.count_of(queue)
    if count then store(P .. "laned:" .. queue, text_of(count + by)) end
  end
end

-- The counter is right if it is the sum of all lines: those of the index, the paused ones, and `seen` ones of the walk.
-- With too many lines it is left alone, unless it is invalid.
function judge_lane.count(queue, seen)
  local name, lanes, sizes_of, n, sum = "laned:" .. queue, {}, "lanes:" .. queue, 0, 0
  local count, index = judge_lane.count_of(queue), "queue:" .. queue .. ":lanes"
  local too_many = size_in(index) + (is_there(sizes_of, "hash") and redis.call("HLEN", P .. sizes_of) or 0) > MOST_LANES
  if count and too_many then return end
  for _, lane in ipairs(seen) do lanes[lane] = true end
  for _, lane in ipairs(types[index] == "zset" and redis.call("ZRANGE", P .. index, 0, -1) or {}) do
    lanes[lane] = lane ~= "" or nil
  end
  for _, field in ipairs(types[sizes_of] == "hash" and redis.call("HKEYS", P .. sizes_of) or {}) do
    local lane = string.match(field, "^paused:([^\n]+)$")
    if lane then lanes[lane] = true end
  end
  for lane in pairs(lanes) do
    n, sum = n + 1, sum + size_in(line_of(queue, lane))
  end
  if count == sum or count and n > MOST_LANES then return end
  local said = "says that " .. (count or "no") .. " jobs lie in lanes; there are "
  report("wrong-count", name, said .. sum, "set it right")
  judge_lane.counted[queue] = true
  if sum > 0 then store(P .. name, text_of(sum)) else drop(P .. name) end
end
