#!lua flags=no-writes
-- served.lua — which queues a worker was last asked to serve, and how often it was asked.
--
-- Called by: mailbox.serve_request (supervisor/engine/commands/mailbox.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   worker
--
-- Returns   array: number of the last request, 0 = none; order, "" = unchanged; the queues, none = unchanged.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include while_moving
--- @include this_layout
--- @include keys
local request = redis.call("HMGET", P .. "worker:" .. ARGV[1], "wish", "order", "queues")
return { tonumber(request[1]) or 0, request[2] or "", unpack(lines_of(request[3] or "")) }
