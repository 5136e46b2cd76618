#!lua
-- signal.lua — send a job a signal: its wait for it ends, and a later one will not begin.
--
-- Called by: job_changes.signal (supervisor/engine/commands/job_changes.py)
-- Holds:     INV-12 a job keeps at most 100 signals
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   jid
-- ARGV[3]   name of the signal; a later one of the same name replaces it
-- ARGV[4]   value as JSON
-- ARGV[5]   name of the actor; "" = unknown
--
-- Returns   1, or 0 if there is no such job, or it is complete.
-- Errors    REFUSED for the 101st signal of a job. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include this_layout
--- @include clock
--- @include moves
--- @include replay
--- @include acts
local rec, name = read_job(ARGV[2]), ARGV[3]
if not rec or rec.state == "complete" then return 0 end
if not replay.keep_signal(rec, name, ARGV[4]) then
  refuse("REFUSED", "job " .. rec.jid .. " has 100 signals already: send one of these names again")
end
note(rec, "signalled", { signal = name })
publish_job_event("job.signalled", rec, { signal = name })
if rec.state == "scheduled" and rec.waits_for == name then
  moves.leave(rec)
  rec.ready = now
  --   An earlier release may leave `waits_for` at a job that it retries, which has no turn.
  if rec.turn then moves.to_front(rec) else moves.to_waiting(rec) end
end
acts.note(ARGV[5], "signal", "job", { rec.jid }, "", name)
commit()
return 1
