#!lua flags=no-writes
-- worker.lua — the leases of one worker, and the klasses that it has handlers for.
--
-- Called by: workers.jobs_of (supervisor/engine/commands/workers.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
--
-- Returns   array: when it was last seen, in ms | 0, two arrays of jids in the order of their leases: those that run,
--           and those whose leases have expired; and an array of klasses.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include held
local worker = ARGV[2]
local running, stalled = held_by(worker, -1)
local seen = tonumber(redis.call("ZSCORE", P .. "workers-seen", worker) or 0)
return { seen > last_seen_least() and seen or 0, running, stalled, (skills_of(worker, 1000)) }
