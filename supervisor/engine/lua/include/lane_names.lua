-- lane_names.lua: which lanes a queue has, for readers: those that jobs wait in, and those that are set up.
--- @include lanes
-- In the order of their names; the jobs without a lane first, "".
local function lane_names(queue)
  local found, names = {}, {}
  for _, lane in ipairs(redis.call("ZRANGE", queue_key(queue, "lanes"), 0, -1)) do found[lane] = true end
  for _, field in ipairs(redis.call("HKEYS", P .. "lanes:" .. queue)) do
    found[string.match(field, "^%l+:(.*)$") or ""] = true
  end
  found[""] = nil
  for lane in pairs(found) do names[#names + 1] = lane end
  table.sort(names, lies_before)
  table.insert(names, 1, "")
  return names
end
