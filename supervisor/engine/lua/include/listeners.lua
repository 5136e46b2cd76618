-- listeners.lua: whether events have listeners. One query per script.
--- @include prefix
local listened

local function has_listeners()
  if listened == nil then
    local found = redis.pcall("PUBSUB", "NUMSUB", P .. "events") -- an account without the right to ask has no listeners
    listened = (found[2] or 0) > 0
  end
  return listened
end
