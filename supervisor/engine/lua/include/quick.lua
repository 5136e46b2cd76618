-- quick.lua: what the quick ways share. A quick way is the first part of a script: it carries out alone what comes by
-- the ten thousand, in few calls of Redis, without the plan, before the functions of the rest are defined. Whenever it
-- meets anything else it answers nil, having written nothing, and the rest of the script does it all. It does the very
-- same to Redis as the rest would, in two halves as well.
--- @include clock
--- @include heard
--- @include chunks
local now_text = string.format("%.0f", now) -- a number is turned into text again by every call that takes it

-- Of a counter; nil if something else stands there.
local function value_of(counter)
  local text = redis.call("GET", P .. counter)
  if not text then return 0 end
  return string.find(text, "^%d+$") and tonumber(text)
end
