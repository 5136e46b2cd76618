-- heard.lua: whether anybody listens to what happens: one look per script.
--- @include keys
local listened

local function heard()
  if listened == nil then
    local found = redis.pcall("PUBSUB", "NUMSUB", P .. "events") -- an account that may not ask is not heard
    listened = (found[2] or 0) > 0
  end
  return listened
end
