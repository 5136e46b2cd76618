#!lua
-- batchopen.lua — begin a batch: jobs can be put into it until it is closed.
--
-- Called by: batches.opened (supervisor/engine/commands/batches.py)
-- Holds:     INV-12 batches are at most 10 deep
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   id
-- ARGV[3]   description
-- ARGV[4]   the batch of which it is a member; "" = none
-- ARGV[5..] per callback its name (on_success, on_failure or on_complete), and the arguments of one put (put.lua)
--
-- Returns   1.
-- Errors    REFUSED for an id that a batch has, for a parent that is unknown or closed, above the depth, and for a new
--           queue above 100,000. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include this_layout
--- @include clock
--- @include batches
local callbacks, at = {}, 5
while at <= #ARGV do
  local name = ARGV[at]
  callbacks[name], at = stage.later_put(at + 1)
end
batches.open(ARGV[2], ARGV[3], ARGV[4] ~= "" and ARGV[4] or nil, callbacks)
commit()
return 1
