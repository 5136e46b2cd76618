#!lua flags=no-writes
-- timing.lua — the heartbeat and grace of some queues, by which a worker times itself, and what replicas must have.
--
-- Called by: settings.timing (supervisor/engine/commands/settings.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1..] queues
--
-- Returns   array: the shortest heartbeat of these queues, their longest grace, their shortest grace, how long to wait
--           for replicas, all in ms, and for how many.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include while_moving
--- @include this_layout
--- @include config
local heartbeat, longest_grace, shortest_grace = math.huge, 0, math.huge
for i = 1, #ARGV do
  heartbeat = math.min(heartbeat, setting_ms("heartbeat", ARGV[i]))
  local grace = setting_ms("grace", ARGV[i])
  longest_grace, shortest_grace = math.max(longest_grace, grace), math.min(shortest_grace, grace)
end
return { heartbeat, longest_grace, shortest_grace, setting_ms("acknowledge-timeout"), setting("acknowledge") }
