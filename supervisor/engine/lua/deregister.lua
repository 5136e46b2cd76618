#!lua flags=allow-oom
-- deregister.lua — forget a worker: all it holds goes to the front, uncounted, and its tokens are void.
--
-- Called by: commands.deregister (supervisor/engine/commands.py)
-- Holds:     INV-3 a lease that was taken away cannot settle any more
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
--
-- Returns   how many jobs were handed back.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include clock
--- @include moves
local worker, handed_back = ARGV[2], 0
for _, jid in ipairs(redis.call("ZRANGE", P .. "held:" .. worker, 0, -1)) do
  if hand_back(jid, worker) then handed_back = handed_back + 1 end
end
place(P .. "workers", worker, false)
drop(P .. "worker:" .. worker)
drop(P .. "mail:" .. worker)
commit()
return handed_back
