#!lua flags=allow-oom
-- forget.lua — remove an empty queue from the list of queues.
--
-- Called by: deleting.forget_once (supervisor/engine/commands/deleting.py)
-- Holds:     INV-2 every job can be found
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
-- ARGV[3]   name of the actor; "" = unknown
--
-- Returns   1; 0 if it is not known; -1 if another call is needed.
-- Errors    REFUSED if jobs or recurrences lie in it. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include this_layout
--- @include clock
--- @include queues
--- @include acts
local queue = ARGV[2]
local function must_be_empty(part, n)
  if n > 0 then refuse("REFUSED", "queue " .. queue .. " is not empty: " .. part .. " has " .. n) end
end

for _, part in ipairs({ "waiting", "front", "running", "scheduled", "depends", "parked", "apart", "recurring" }) do
  must_be_empty(part, redis.call("ZCARD", queue_key(queue, part)))
end
must_be_empty("its lanes", lanes.size(queue))
must_be_empty("in:" .. queue, redis.call("LLEN", P .. "in:" .. queue))
local was_known = queues.forget(queue)
if was_known then acts.note(ARGV[3], "delete", "queue", { queue }, "", "", 0) end
commit()
return was_known == nil and -1 or was_known and 1 or 0
