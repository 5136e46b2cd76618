#!lua flags=allow-oom
-- desire.lua — publish how many supervisors there should be, as the length of a list that a scaler reads.
--
-- Called by: workers.desire (supervisor/engine/commands/workers.py)
-- Holds:     INV-12 a number that is not published again expires
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   name of the group of supervisors
-- ARGV[2]   how many, 0 to 1000; with 0 there is no key
-- ARGV[3]   JSON for people that explains the number: the first element
--
-- Returns   the number.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include plan
local key, count = P .. "desired:" .. ARGV[1], tonumber(ARGV[2])
drop(key)
for i = 1, count do push(key, i == 1 and ARGV[3] or "1", 1000, 60000) end
commit()
return count
