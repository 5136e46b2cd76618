#!lua flags=no-writes
-- stats.lua — the statistics of a queue for one UTC day.
--
-- Called by: statistics.read (supervisor/engine/commands/statistics.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
-- ARGV[3]   midnight UTC of the day, unix s; "" = today
--
-- Returns   array: the day in unix s, the fields and values of stats:<day>:<queue> and of histogram:<day>:<queue>, the
--           counters of bins:<day>:<queue> | nil.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
local day = tonumber(ARGV[3]) or math.floor(now / 86400000) * 86400
local suffix = string.format("%d:", day) .. ARGV[2]
return {
  day, redis.call("HGETALL", P .. "stats:" .. suffix), redis.call("HGETALL", P .. "histogram:" .. suffix),
  redis.call("GET", P .. "bins:" .. suffix),
}
