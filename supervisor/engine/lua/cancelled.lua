#!lua flags=no-writes
-- cancelled.lua — when a job was cancelled, and by whom, until that is forgotten.
--
-- Called by: job_queries.cancelled (supervisor/engine/commands/job_queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   jid
--
-- Returns   nil, or an array: when in ms, name of the actor | nil.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
local when = redis.call("ZSCORE", P .. "cancelled", ARGV[1])
if not when then return false end
return { tonumber(when), redis.call("HGET", P .. "cancelled-by", ARGV[1]) }
