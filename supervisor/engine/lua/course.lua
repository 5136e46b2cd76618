#!lua flags=no-writes
-- course.lua — what all queues together have gone through lately, step by step.
--
-- Called by: course.read (supervisor/engine/commands/course.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   seconds of a step: 60, 600 or 86400
-- ARGV[3]   number of steps, at most 1000
--
-- Returns   array: now in ms, and the counters of course:<seconds>:<time> | nil of each step, the newest first.
-- Errors    none for a foreign key of ours: it counts as missing.

--- @include this_layout
--- @include clock
local step, keys = tonumber(ARGV[2]), {}
local newest = math.floor(now / 1000 / step) * step
for i = 1, tonumber(ARGV[3]) do keys[i] = string.format("%scourse:%d:%.0f", P, step, newest - (i - 1) * step) end
return { now, redis.call("MGET", unpack(keys)) }
