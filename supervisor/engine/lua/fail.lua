#!lua flags=allow-oom
-- fail.lua — fail a job by hand, in any state.
--
-- Called by: job_changes.fail (supervisor/engine/commands/job_changes.py)
-- Holds:     INV-3 its worker has lost the lease
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   jid
-- ARGV[3]   group
-- ARGV[4]   failure as JSON
-- ARGV[5]   name of the actor; "" = unknown
--
-- Returns   1, or 0 if there is no such job.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include moves
--- @include acts
local rec = read_job(ARGV[2])
if not rec then return 0 end
moves.take_away(rec)
drop(P .. "result:" .. rec.jid)
moves.to_failed(rec, ARGV[3], ARGV[4])
acts.note(ARGV[5], "fail", "job", { rec.jid }, "", ARGV[3])
commit()
return 1
