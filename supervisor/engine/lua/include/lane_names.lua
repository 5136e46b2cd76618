-- lane_names.lua: the lanes of a queue for queries: those that jobs wait in, and those with settings.
--- @include lanes
-- First the lanes that have turns in their order, then the others; "" stands for the jobs without a lane.
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
