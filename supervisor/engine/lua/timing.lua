#!lua flags=no-writes
-- timing.lua — the times that a worker of some queues goes by.
--
-- Called by: looks.timing (supervisor/engine/looks.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1..] queues
--
-- Returns   array: the shortest heartbeat of these queues and their longest grace, in ms.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include config
local heartbeat, grace = math.huge, 0
for i = 1, #ARGV do
  heartbeat = math.min(heartbeat, setting_ms("heartbeat", ARGV[i]))
  grace = math.max(grace, setting_ms("grace", ARGV[i]))
end
return { heartbeat, grace }
