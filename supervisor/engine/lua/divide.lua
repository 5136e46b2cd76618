#!lua
-- divide.lua — say how many shards a new namespace has.
--
-- Called by: dividing.divide (supervisor/engine/commands/dividing.py)
-- Holds:     a namespace that is in use keeps its number of shards
--
-- KEYS[1]   prefix of the namespace's first shard
-- ARGV[1]   number of shards; "" = only read it
--
-- Returns   the number of its shards, as the mark of its layout has it.
-- Errors    LAYOUT in a namespace of another layout; WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include layout
local shards = layout.shards or "1"
if layout.state == "sharded" or layout.state == "moving" then return shards end
--- @include this_layout
if layout.state ~= "new" or ARGV[1] == "" or ARGV[1] == "1" then return shards end
layout.shards = ARGV[1]
redis.call("MSET", P .. "config", layout.mark(), P .. "tracked", "2", P .. "tags", "2", P .. "workers", "2")
return layout.shards
