#!lua flags=no-writes
-- tags.lua — the most used tags.
--
-- Called by: looks.tags (supervisor/engine/commands/queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   offset, how many tags to pass over
-- ARGV[2]   count, most tags to answer
--
-- Returns   array of tag, number of jobs, tag, number … most used first.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include keys
local offset, count = tonumber(ARGV[1]), tonumber(ARGV[2])
return count > 0 and redis.call("ZREVRANGE", P .. "tags", offset, offset + count - 1, "WITHSCORES") or {}
