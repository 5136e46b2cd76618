#!lua
-- log.lua — add a line to a job's history.
--
-- Called by: job_changes.log (supervisor/engine/commands/job_changes.py)
-- Holds:     INV-12 the first and the last 99 entries
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   jid
-- ARGV[3]   name of the actor; "" = unknown
-- ARGV[4]   JSON of an object with the line: "when" is added
--
-- Returns   1, or 0 if there is no such job.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include record
--- @include acts
local rec = read_job(ARGV[2])
if not rec then return 0 end
note_present(rec)
rec.noted = 1
push(P .. "history:" .. ARGV[2], string.sub(ARGV[4], 1, -2) .. string.format(',"when":%.3f}', now / 1000), 99)
acts.note(ARGV[3], "log", "job", { ARGV[2] })
commit()
return 1
