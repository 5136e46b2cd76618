#!lua flags=no-writes
-- recent.lua — how long a queue's jobs have waited and run lately: by ten minutes for a day, by days for 30 days.
--
-- Called by: recent.read (supervisor/engine/commands/recent.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
--
-- Returns   array: now in ms, the counters of recent:<ten minutes>:<queue> | nil, 145 times, and those of
--           bins:<day>:<queue> | nil, 30 times. The newest come first.
-- Errors    none for a foreign key of ours: it counts as missing.

--- @include this_layout
--- @include clock
local function counters(family, span, number)
  local keys, newest = {}, math.floor(now / span / 1000) * span
  for i = 1, number do keys[i] = string.format("%s%s:%.0f:%s", P, family, newest - (i - 1) * span, ARGV[2]) end
  return redis.call("MGET", unpack(keys))
end

return { now, counters("recent", 600, 145), counters("bins", 86400, 30) }
