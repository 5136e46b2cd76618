#!lua flags=no-writes
-- doors.lua — the doors to lists of other programs, and how many entries wait there.
--
-- Called by: doors.read (supervisor/engine/commands/doors.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
--
-- Returns   array: for each door an array of its name, its text as door.lua takes it, and the length of its list,
--           -1 = it is none, or this account may not read it.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include keys
local found, rows = redis.call("HGETALL", P .. "doors"), {}
for i = 1, #found, 2 do
  local length = redis.pcall("LLEN", (string.match(found[i + 1], "^[^\n]*\n([^\n]*)\n") or ""))
  rows[#rows + 1] = { found[i], found[i + 1], tonumber(length) or -1 }
end
return rows
