#!lua flags=allow-oom
-- priority.lua — change a job's priority. A waiting job moves in its line and keeps its age.
--
-- Called by: job_changes.set_priority (supervisor/engine/commands/job_changes.py)
-- Holds:     INV-1 a job lies in exactly one place
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   jid
-- ARGV[3]   priority
-- ARGV[4]   name of the actor; "" = unknown
--
-- Returns   1, or 0 if there is no such job.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include priorities
--- @include acts
local rec = read_job(ARGV[2])
if not rec then return 0 end
priorities.set(rec, ARGV[3])
acts.note(ARGV[4], "priority", "job", { rec.jid }, "", ARGV[3])
commit()
return 1
