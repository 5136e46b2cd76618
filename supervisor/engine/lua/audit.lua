#!lua flags=no-writes
-- audit.lua — who did what, the newest act first.
--
-- Called by: audit.read (supervisor/engine/commands/audit.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   only acts on this: a jid, or the name of a queue, lane, limit or another thing; "" = all acts
-- ARGV[2]   offset: how many of these to skip
-- ARGV[3]   count, the most to return, 0 to 1000
--
-- Returns   array of acts, as acts.lua writes them: lines of when (ms), number, actor, act, kind of thing, queue,
--           value, and the names of the first 20 things.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
local subject, offset, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local SLICE, found = 1000, {}
local total = redis.call("LLEN", P .. "audit")

local function concerns(act)
  if subject == "" then return true end
  local queue, rest = string.match(act, "^%d+\n%d+\n[^\n]*\n[^\n]*\n[^\n]*\n([^\n]*)\n[^\n]*(.*)$")
  return queue == subject or rest and string.find(rest .. "\n", "\n" .. subject .. "\n", 1, true) ~= nil
end

for last = total - 1, 0, -SLICE do
  local slice = redis.call("LRANGE", P .. "audit", math.max(0, last - SLICE + 1), last)
  for i = #slice, 1, -1 do
    if #found == count then return found end
    if concerns(slice[i]) then
      if offset > 0 then offset = offset - 1 else found[#found + 1] = slice[i] end
    end
  end
end
return found
