#!lua flags=no-writes
-- peek.lua — the jobs that the next leases of a queue would give if it were neither paused nor full.
--
-- Called by: job_queries.peek (supervisor/engine/commands/job_queries.py)
-- Holds:     nothing is written: due and expired jobs stay where they are
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
-- ARGV[3]   count, the most jobs to return
--
-- Returns   array of jobs, each an array as in job.lua, in the order in which a lease would give them.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include view
--- @include picking
local queue, count, answer = ARGV[2], tonumber(ARGV[3]), {}
if count == 0 then return answer end
picking.worker, picking.takeover, picking.regardless = "", true, true
picking.serve(queue, count, count)
-- The planned writes are never committed.
for i, job in ipairs(picking.taken) do answer[i] = view(job.jid) end
return answer
