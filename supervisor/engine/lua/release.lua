#!lua flags=allow-oom
-- release.lua — take running jobs from their workers and put them in front. Started ones count an interruption; an
-- at-most-once job fails.
--
-- Called by: job_changes.release (supervisor/engine/commands/job_changes.py)
-- Holds:     INV-3 the worker of a released job has lost its lease
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   name of the actor; "" = unknown
-- ARGV[3..] jids
--
-- Returns   array of 1 (released) and 0 (it does not run), one per job.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include moves
--- @include acts
local answers, released = {}, {}
for i = 3, #ARGV do
  local rec = read_job(ARGV[i])
  local runs = rec and rec.state == "running"
  if runs then
    local started = rec.started
    moves.take_away(rec)
    if not started and not moves.is_once(rec) then
      moves.was_not_started(rec)
    else
      rec.interruptions = (tonumber(rec.interruptions) or 0) + 1
      tally(rec.queue, "interruptions", 1)
    end
    note(rec, "released", {})
    released[#released + 1] = rec.jid
    publish_job_event("job.released", rec)
    if moves.is_once(rec) then moves.fail_interrupted(rec) else moves.to_front(rec) end
  end
  answers[#answers + 1] = runs and 1 or 0
end
if #released > 0 then acts.note(ARGV[2], "release", "job", released) end
commit()
return answers
