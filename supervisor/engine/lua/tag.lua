#!lua flags=allow-oom
-- tag.lua — add tags to a job, or remove them.
--
-- Called by: job_changes.tag, job_changes.untag (supervisor/engine/commands/job_changes.py)
-- Holds:     INV-12 at most 100 tags a job
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   "add" or "remove"
-- ARGV[3]   jid
-- ARGV[4]   name of the actor; "" = unknown
-- ARGV[5..] tags
--
-- Returns   array of the job's tags now, or nil if there is no such job.
-- Errors    REFUSED if there would be more than 100. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include this_layout
--- @include clock
--- @include record
--- @include tagging
--- @include retag
--- @include acts
local rec = read_job(ARGV[3])
if not rec then return false end
local kept = retagged(tagging.of(rec), "job " .. rec.jid)
tagging.set(rec, kept)
acts.note(ARGV[4], ARGV[2] == "add" and "tag" or "untag", "job", { rec.jid }, "", table.concat(ARGV, " ", 5))
commit()
return kept
