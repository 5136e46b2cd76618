#!lua flags=no-writes
-- tags.lua — the most used tags.
--
-- Called by: job_queries.tags (supervisor/engine/commands/job_queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   offset: number of tags to skip
-- ARGV[2]   count, the most tags to return
--
-- Returns   array of tag, number of jobs, tag, number … most used first.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
local offset, count = tonumber(ARGV[1]), tonumber(ARGV[2])
return count > 0 and redis.call("ZREVRANGE", P .. "tag-counts", offset, offset + count - 1, "WITHSCORES") or {}
