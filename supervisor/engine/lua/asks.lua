#!lua flags=no-writes
-- asks.lua — the open requests to a worker.
--
-- Called by: mailbox.requests (supervisor/engine/commands/mailbox.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
--
-- Returns   array, oldest first, of arrays: id, what is asked for, argument as JSON | "".
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include while_moving
--- @include this_layout
--- @include clock
local asks = {}
for _, request in ipairs(redis.call("LRANGE", P .. "asks:" .. ARGV[2], 0, -1)) do
  local ends, id, what, argument = string.match(request, "^(%d+)\n(.-)\n(.-)\n(.*)$")
  if ends and tonumber(ends) > now then asks[#asks + 1] = { id, what, argument } end
end
return asks
