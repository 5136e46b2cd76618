#!lua flags=allow-oom
-- answer.lua — answer a request to a worker. The request ends with that, so that it is answered once.
--
-- Called by: mailbox.answer (supervisor/engine/commands/mailbox.py)
-- Holds:     INV-12 an answer that no client fetches expires
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   id of the request
-- ARGV[4]   JSON, an array of the worker and its answer
--
-- Returns   1, or 0 if the request has ended: nothing has changed then.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include while_moving
--- @include this_layout
--- @include clock
--- @include plan
local asks, id = P .. "asks:" .. ARGV[2], ARGV[3]
for _, request in ipairs(redis.call("LRANGE", asks, 0, -1)) do
  local ends, asked = string.match(request, "^(%d+)\n(.-)\n")
  if asked == id and tonumber(ends) > now then
    strike(asks, request)
    push(P .. "answer:" .. id, ARGV[4], 1000, 60000)
    commit()
    return 1
  end
end
return 0
