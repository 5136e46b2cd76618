-- exact.lua: the largest number that is taken in. Redis keeps scores, and Lua all numbers, as doubles.
local EXACT = 2 ^ 53
