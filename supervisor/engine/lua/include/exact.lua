-- exact.lua: the largest number accepted. Redis keeps scores, and Lua all numbers, as doubles.
local EXACT = 2 ^ 53
