#!lua flags=no-writes
-- job.lua — everything about some jobs.
--
-- Called by: job_queries.jobs, job_queries.row (supervisor/engine/commands/job_queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2..] jids
--
-- Returns   array, one per jid: nil if there is no such job, else an array: jid, state as of now (waiting, scheduled,
--           depends, running, stalled, failed, complete), expiry in ms | 0, due time in ms | 0, completed in ms | 0,
--           data, failure, result, tags joined by "\n" | nil, array of history as JSON, array of dependencies, array of
--           dependents (at most 1,000 of each), progress as JSON | nil, start deadline in ms | 0, checkpoint as JSON |
--           nil, then the record's fields and values.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include freed
local found = {}
for i = 2, #ARGV do found[#found + 1] = freed.view(ARGV[i]) end
return found
