#!lua flags=no-writes
-- doors.lua — the doors to lists of other programs, and how many entries wait there.
--
-- Called by: doors.read (supervisor/engine/commands/doors.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
--
-- Returns   array: for each door an array of its name, its text as door.lua takes it, and how many entries its
--           lists have, -1 = one is none, or this account may not read it.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include keys
local function length_of(lists)
  local length = 0
  for list in string.gmatch(lists, "[^\t]+") do
    local n = redis.pcall("LLEN", list)
    if type(n) ~= "number" then return -1 end
    length = length + n
  end
  return length
end

local found, rows = redis.call("HGETALL", P .. "doors"), {}
for i = 1, #found, 2 do
  local lists = string.match(found[i + 1], "^[^\n]*\n([^\n]*)\n") or ""
  rows[#rows + 1] = { found[i], found[i + 1], length_of(lists) }
end
return rows
