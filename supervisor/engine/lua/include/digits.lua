-- digits.lua: whole numbers as text. Lua's own conversion is exact only to 14 digits.
local function digits(number) return string.format("%.0f", number) end
