-- quick.lua: what the quick paths share. A quick path is the first part of a script. It carries out the calls that come
-- by the ten thousand, in few calls of Redis, without the plan, before the functions of the rest are defined. If it
-- meets anything else it returns nil without having written, and the rest of the script does it all. It changes Redis
-- exactly as the rest would, and also reads first and writes then.
--- @include clock
--- @include listeners
--- @include chunks
local now_text = string.format("%.0f", now) -- every call that takes a number would convert it again

-- Return the number of a counter; nil if it is none.
local function value_of(counter)
  local text = layout[counter] or redis.call("GET", P .. counter)
  if not text then return 0 end
  return string.find(text, "^%d+$") and tonumber(text)
end
