-- chunks.lua: Redis calls with many values.
-- At most 1,000 values a call, because Lua's stack ends at about 8,000.
local function in_chunks(command, values, key)
  for first = 1, #values, 1000 do
    local last = math.min(first + 999, #values)
    if key then
      redis.call(command, key, unpack(values, first, last))
    else
      redis.call(command, unpack(values, first, last))
    end
  end
end

-- Return how many of these keys are there.
local function count_existing(keys)
  local n = 0
  for first = 1, #keys, 1000 do
    n = n + redis.call("EXISTS", unpack(keys, first, math.min(first + 999, #keys)))
  end
  return n
end
