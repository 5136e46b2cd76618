-- remembered.lua: how many ids of cancelled jobs, and how many of dropped ones, are kept, and for how long.
local REMEMBERED, REMEMBERED_MS = 10000, 7 * 86400000
