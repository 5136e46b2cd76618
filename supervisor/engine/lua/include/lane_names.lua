-- lane_names.lua: which lanes a queue has, for readers: those that jobs wait in, and those that are set up.
--- @include lanes
-- Those that have turns in the order in which they have them, then the others; the jobs without a lane are "".
local function lane_names(queue)
  local names, found = redis.call("ZRANGE", queue_key(queue, "lanes"), 0, -1), {}
  for _, lane in ipairs(names) do found[lane] = true end
  if not found[""] then names[#names + 1] = "" end
  for _, field in ipairs(redis.call("HKEYS", P .. "lanes:" .. queue)) do
    local lane = string.match(field, "^%l+:(.+)$")
    if lane and not found[lane] then names[#names + 1], found[lane] = lane, true end
  end
  return names, found
end
