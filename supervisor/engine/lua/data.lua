#!lua flags=no-writes
-- data.lua — a piece of the data of a job or a recurrence: of what is too large for the answer with the rest.
--
-- Called by: looks.piece (supervisor/engine/looks.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   kind of data: "data" (of a job) or "recurdata" (of a recurrence)
-- ARGV[2]   jid
-- ARGV[3]   offset of the piece in bytes
-- ARGV[4]   its size in bytes, at the most
--
-- Returns   array: size of the whole in bytes, -1 if there is none, and the piece.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include keys
local key, offset = P .. ARGV[1] .. ":" .. ARGV[2], tonumber(ARGV[3])
if redis.call("EXISTS", key) == 0 then return { -1, "" } end
return { redis.call("STRLEN", key), redis.call("GETRANGE", key, offset, offset + ARGV[4] - 1) }
