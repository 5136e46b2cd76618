#!lua flags=allow-oom
-- desire.lua — say how many supervisors there should be, where a scaler reads it: as the length of a list.
--
-- Called by: commands.desire (supervisor/engine/commands/writes.py)
-- Holds:     INV-12 what nobody says again ends by itself
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   name, under which it is said
-- ARGV[2]   how many, 0 to 1000; with 0 there is no key
-- ARGV[3]   JSON for people, of where the number comes from: the first element
--
-- Returns   how many.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include plan
local key, count = P .. "desired:" .. ARGV[1], tonumber(ARGV[2])
drop(key)
for i = 1, count do push(key, i == 1 and ARGV[3] or "1", 1000, 60000) end
commit()
return count
