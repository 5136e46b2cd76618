#!lua flags=allow-oom
-- move.lua — move one job unchanged into a queue, from any state. A full Redis allows this: no job is added.
--
-- Called by: job_changes.move (supervisor/engine/commands/job_changes.py)
-- Holds:     INV-1 a job lies in exactly one place; INV-3 a move begins a new stage, and its worker has lost the lease
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
-- ARGV[3]   jid
-- ARGV[4]   delay in ms
-- ARGV[5]   name of the actor; "" = unknown
--
-- Returns   1, or 0 if there is no such job.
-- Errors    DEPENDENCY if the job would wait for itself; REFUSED for a new queue above 100,000. WRONGTYPE for a
--           foreign key of ours. Nothing has changed then.

--- @include this_layout
--- @include clock
--- @include stage
--- @include acts
stage.check_room(ARGV[2])
local moved, why = stage.put("move", ARGV[2], ARGV[3], "", "", "", now + tonumber(ARGV[4]), {})
if not moved then refuse("DEPENDENCY", why) end
if moved == 1 then acts.note(ARGV[5], "move", "job", { ARGV[3] }, ARGV[2]) end
commit()
return moved
