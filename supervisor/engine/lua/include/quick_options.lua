-- quick_options.lua: the options that a quick path needs, with their defaults (config.lua has the same).
--- @include layout
-- Return the values of options by their names and defaults, an array of both in turn; of a queue, or of the namespace.
local function quick_options(queue, wanted)
  local names, values = {}, {}
  for i = 1, #wanted, 2 do
    names[#names + 1], names[#names + 2] = wanted[i], queue and wanted[i] .. "-" .. queue or wanted[i]
  end
  local found = redis.call("HMGET", P .. "options", unpack(names))
  for i = 1, #wanted / 2 do
    values[i] = tonumber(found[2 * i] or nil) or tonumber(found[2 * i - 1] or nil) or wanted[2 * i]
  end
  return unpack(values)
end
