#!lua flags=allow-oom
-- spawn.lua — put the jobs of a cron recurrence that is due; exactly one caller takes each time.
--
-- Called by: recurrences.spawn (supervisor/engine/commands/recurrences.py)
-- Holds:     INV-1 a job lies in exactly one place
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   jid of the recurrence
-- ARGV[3]   the next time that the caller knows, unix ms
-- ARGV[4]   the next time after those of this call, unix ms; "" = none, and the recurrence ends
-- ARGV[5..] times of the jobs to put, unix ms
--
-- Returns   1, or 0 if another caller was faster, or the recurrence has changed.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include recurrence
local pattern = recurrence.read(ARGV[2])
if not pattern or pattern.next ~= ARGV[3] then return 0 end
for i = 5, #ARGV do recurrence.spawn(pattern, tonumber(ARGV[i])) end
if ARGV[4] ~= "" then recurrence.set_next(pattern, tonumber(ARGV[4])) else recurrence.finish(pattern) end
wake(pattern.queue) -- waiting workers do not know its next time
commit()
return 1
