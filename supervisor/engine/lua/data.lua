#!lua flags=no-writes
-- data.lua — a piece of a text or list that is too large for the reply with its job or recurrence.
--
-- Called by: job_queries.piece, job_queries.elements (supervisor/engine/commands/job_queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   kind: "data", "failure", "result", "saved" (texts of a job), "recurdata" (text of a recurrence), "history",
--           "dependencies", "dependents" (lists of a job)
-- ARGV[2]   jid
-- ARGV[3]   offset of the piece in bytes or elements
-- ARGV[4]   size of the piece, at most
--
-- Returns   array: size of the whole, -1 if there is none; and the piece, a string or an array of the elements.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include stored
local READERS = { history = { "LLEN", "LRANGE" }, dependencies = { "ZCARD", "ZRANGE" } }
READERS.dependents = READERS.dependencies
local key, offset = P .. ARGV[1] .. ":" .. ARGV[2], tonumber(ARGV[3])
if ARGV[1] == "data" then
  local _, payload = stored_job(ARGV[2])
  if payload then return { #payload, string.sub(payload, offset + 1, offset + ARGV[4]) } end
end
if redis.call("EXISTS", key) == 0 then return { -1, "" } end
local size, read = unpack(READERS[ARGV[1]] or { "STRLEN", "GETRANGE" })
return { redis.call(size, key), redis.call(read, key, offset, offset + ARGV[4] - 1) }
