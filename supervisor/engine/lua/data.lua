#!lua flags=no-writes
-- data.lua — a piece of what is too large for the answer with the rest of a job or a recurrence.
--
-- Called by: looks.piece, looks.elements (supervisor/engine/commands/queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   kind: "data", "failure", "result", "saved" (of a job), "recurdata" (of a recurrence); or, in elements,
--           "history", "dependencies", "dependents" (of a job)
-- ARGV[2]   jid
-- ARGV[3]   offset of the piece in bytes or elements
-- ARGV[4]   its size, at the most
--
-- Returns   array: size of the whole, -1 if there is none, and the piece: a string, or an array of the elements.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include keys
local READERS = { history = { "LLEN", "LRANGE" }, dependencies = { "ZCARD", "ZRANGE" } }
READERS.dependents = READERS.dependencies
local key, offset = P .. ARGV[1] .. ":" .. ARGV[2], tonumber(ARGV[3])
if redis.call("EXISTS", key) == 0 then return { -1, "" } end
local size, read = unpack(READERS[ARGV[1]] or { "STRLEN", "GETRANGE" })
return { redis.call(size, key), redis.call(read, key, offset, offset + ARGV[4] - 1) }
