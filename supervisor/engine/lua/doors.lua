#!lua flags=no-writes
-- doors.lua — the doors to lists of other programs, and how many entries wait there.
--
-- Called by: doors.read (supervisor/engine/commands/doors.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
--
-- Returns   array: for each door an array of its name, its text as door.lua takes it, how many entries its lists have,
--           -1 = one is none, or this account may not read it; and up to 100 known lists of clients, the last seen
--           ones first.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include keys
local SHOWN = 100

local function length_of(lists)
  local length = 0
  for _, list in ipairs(lists) do
    local n = redis.pcall("LLEN", list)
    if type(n) ~= "number" then return -1 end
    length = length + n
  end
  return length
end

-- Return the lists of a door, the last seen ones first if clients have their own.
local function lists_of(name, text)
  local format, named = string.match(text, "^([^\n]*)\n([^\n]*)\n")
  if format == "client-lists" then return redis.call("ZREVRANGE", P .. "doorlists:" .. name, 0, -1), SHOWN end
  local lists = {}
  for list in string.gmatch(named or "", "[^\t]+") do lists[#lists + 1] = list end
  return lists, 0
end

local found, rows = redis.call("HGETALL", P .. "doors"), {}
for i = 1, #found, 2 do
  local lists, shown = lists_of(found[i], found[i + 1])
  rows[#rows + 1] = { found[i], found[i + 1], length_of(lists), { unpack(lists, 1, math.min(#lists, shown)) } }
end
return rows
