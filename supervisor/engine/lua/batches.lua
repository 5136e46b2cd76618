#!lua flags=no-writes
-- batches.lua — the batches, with their numbers of members.
--
-- Called by: batches.listed (supervisor/engine/commands/batches.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   how many batches to skip
-- ARGV[3]   the most batches to return, 1 to 1000; 0 = only the numbers
--
-- Returns   array: how many batches have not ended, how many are open (their block has not been left), how many of
--           these for long, how many have ended, array of an array per batch: id, fields and values. Those that have
--           not ended come first, then the others, the last ended one first.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include keys
--- @include open_batches
local skipped, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local running, ended = redis.call("ZCARD", P .. "batches"), redis.call("ZCARD", P .. "batches-ended")
local ids, rows = {}, {}
if count > 0 then
  ids = redis.call("ZRANGE", P .. "batches", skipped, skipped + count - 1)
  local first = math.max(skipped - running, 0)
  local more = #ids < count and redis.call("ZREVRANGE", P .. "batches-ended", first, first + count - #ids - 1) or {}
  for _, id in ipairs(more) do ids[#ids + 1] = id end
end
for _, id in ipairs(ids) do
  local fields = redis.call("HGETALL", P .. "batch:" .. id)
  if #fields > 0 then rows[#rows + 1] = { id, fields } end
end
return { running, redis.call("ZCARD", P .. "batches-open"), open_for_long(), ended, rows }
