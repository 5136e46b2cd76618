#!lua flags=allow-oom
-- unrecur.lua — remove a recurring job. The jobs that it has put stay.
--
-- Called by: recurrences.unrecur (supervisor/engine/commands/recurrences.py)
-- Holds:     nothing of the recurrence remains
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   jid of the recurrence
-- ARGV[3]   name of the actor; "" = unknown
--
-- Returns   1, or 0 if there is none.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include recurrence
--- @include acts
local pattern = recurrence.read(ARGV[2])
if not pattern then return 0 end
recurrence.finish(pattern)
acts.note(ARGV[3], "unrecur", "recurrence", { ARGV[2] }, pattern.queue)
commit()
return 1
