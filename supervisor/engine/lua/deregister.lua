#!lua flags=allow-oom
-- deregister.lua — forget a worker. All its jobs go to the front, uncounted, and its tokens become void.
--
-- Called by: workers.deregister (supervisor/engine/commands/workers.py)
-- Holds:     INV-3 a lease that was taken away cannot settle
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   "1" if the worker itself leaves; any other worker gets a hint
-- ARGV[4]   name of the actor; "" = unknown
--
-- Returns   how many jobs were handed back.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include while_moving
--- @include this_layout
--- @include clock
--- @include moves
--- @include acts
local worker, handed_back = ARGV[2], 0
local held = redis.call("ZRANGE", P .. "held:" .. worker, 0, -1, "WITHSCORES")
for i = 1, #held, 2 do
  if moves.hand_back(held[i], worker, ARGV[3] == "1") then
    handed_back = handed_back + 1
    publish_job_event("lease.lost", read_job(held[i]), { worker = worker, token = math.floor(held[i + 1]) })
  end
end
place(P .. "workers-seen", worker, false)
drop(P .. "worker:" .. worker)
apart.forget(worker, {})
drop(P .. "mail:" .. worker)
drop(P .. "asks:" .. worker)
-- A worker that has left such a hint unread hangs, or is gone: its next renewal would tell it, too.
local has_unread = has_hint(redis.call("LRANGE", P .. "mail:" .. worker, 0, -1), "lost")
if ARGV[3] ~= "1" and not has_unread then hint(worker, "lost") end
publish_event("worker.deregistered", { worker = worker, handed_back = handed_back })
if ARGV[3] ~= "1" then acts.note(ARGV[4], "deregister", "worker", { worker }) end
commit()
return handed_back
