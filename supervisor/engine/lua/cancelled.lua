#!lua flags=no-writes
-- cancelled.lua — when a job was cancelled, and by whom, as long as that is remembered.
--
-- Called by: looks.cancelled (supervisor/engine/commands/queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   jid
--
-- Returns   nil, or an array: when in ms, who did | nil.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include keys
local when = redis.call("ZSCORE", P .. "cancelled", ARGV[1])
if not when then return false end
return { tonumber(when), redis.call("HGET", P .. "cancelled-by", ARGV[1]) }
