#!lua flags=no-writes
-- names.lua — the known queues.
--
-- Called by: queue_counts.names (supervisor/engine/commands/queue_counts.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
--
-- Returns   array of the queues that were put to and not forgotten, in the order of their first put.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
return redis.call("ZRANGE", P .. "queues", 0, -1)
