#!lua flags=allow-oom
-- doortake.lua — take entries of other programs through doors, and put them as jobs.
--
-- Called by: doors.take (supervisor/engine/commands/doors.py)
-- Holds:     INV-1 an entry goes and its job comes in one step; INV-2 an invalid one is kept as it was
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   most entries to take, 1 to 1000
-- ARGV[3..] names of doors
--
-- Returns   array: how many entries were taken; "1" if there are more, else ""; in how many ms to look again, 0 = when
--           something is pushed. Keys of other programs that have another type, or that this account may not change,
--           count as empty. If an entry raises an error, it fails and this call takes no other.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include door_entries
local most, taken, more, look_at = tonumber(ARGV[2]), 0, false, 0

local function take_all()
  for i = 3, #ARGV do
    local n, is_more, at = door_entries.take(ARGV[i], most - taken)
    taken, more = taken + n, more or is_more
    if at > 0 and (look_at == 0 or at < look_at) then look_at = at end
  end
end

local is_taken, problem = pcall(take_all)
if not is_taken then
  entries.handle_error(problem)
  return { 1, "1", 0 }
end
commit()
return { taken, more and "1" or "", look_at > 0 and look_at - now or 0 }
