#!lua flags=no-writes
-- wish.lua — which queues somebody wishes that a worker serves, and how often it was wished anything.
--
-- Called by: looks.wish (supervisor/engine/commands/queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   worker
--
-- Returns   array: number of the last wish, 0 = none; order, "" = as it is; the queues, none = as they are.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include keys
local wish = redis.call("HMGET", P .. "worker:" .. ARGV[1], "wish", "order", "queues")
return { tonumber(wish[1]) or 0, wish[2] or "", unpack(lines_of(wish[3] or "")) }
