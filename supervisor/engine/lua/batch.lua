#!lua flags=no-writes
-- batch.lua — one batch, and some of its failed members.
--
-- Called by: batches.look (supervisor/engine/commands/batches.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   id
-- ARGV[3]   how many failed members to skip
-- ARGV[4]   the most failed members to return
-- ARGV[5]   only those that had failed by then, unix ms; "" = all
--
-- Returns   array: fields and values of the batch, array of jids of failed members in the order in which they failed (a
--           nested batch begins with a line break), and when that was; nil if there is no such batch.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include keys
local fields = redis.call("HGETALL", P .. "batch:" .. ARGV[2])
if #fields == 0 then return nil end
local last = ARGV[5] ~= "" and ARGV[5] or "+inf"
local failed = redis.call("ZRANGEBYSCORE", P .. "batchfailed:" .. ARGV[2], "-inf", last, "LIMIT", ARGV[3], ARGV[4])
return { fields, failed, now }
