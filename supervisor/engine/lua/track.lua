#!lua flags=allow-oom
-- track.lua — track a job, or end its tracking, also of a job that is gone.
--
-- Called by: job_changes.track, job_changes.untrack (supervisor/engine/commands/job_changes.py)
-- Holds:     nothing moves
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   "track" or "untrack"
-- ARGV[3]   jid
-- ARGV[4]   name of the actor; "" = unknown
--
-- Returns   1 if that changed anything, 0 if not, nil if there is no such job to track.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include record
--- @include events
--- @include acts
local rec, tracked = read_job(ARGV[3]), redis.call("ZSCORE", P .. "tracked-jobs", ARGV[3])
local wanted = ARGV[2] == "track"
if wanted and not rec then return false end
if wanted == (tracked and true or false) then return 0 end
place(P .. "tracked-jobs", ARGV[3], wanted and now)
if rec then
  rec.tracked = 1
  publish_job_event(wanted and "job.tracked" or "job.untracked", rec)
  rec.tracked = wanted and 1 or nil
end
acts.note(ARGV[4], ARGV[2], "job", { ARGV[3] })
commit()
return 1
