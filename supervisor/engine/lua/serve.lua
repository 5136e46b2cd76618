#!lua flags=allow-oom
-- serve.lua — ask a worker to serve other queues. The worker reads that at its next lease, and gets a hint.
--
-- Called by: mailbox.serve (supervisor/engine/commands/mailbox.py)
-- Holds:     a hint may be lost, the request is not
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   order; "" = unchanged
-- ARGV[4]   name of the actor; "" = unknown
-- ARGV[5..] queues, as a worker takes them: names, globs, weights
--
-- Returns   the number of the request, 0 if there is no such worker.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include events
--- @include acts
local worker, exchange, queues = ARGV[2], P .. "worker:" .. ARGV[2], {}
for i = 5, #ARGV do queues[#queues + 1] = ARGV[i] end
local known = redis.call("HMGET", exchange, "number", "wish")
if not known[1] then return 0 end
local number = (tonumber(known[2]) or 0) + 1
set_fields({ exchange, "wish", number, "queues", table.concat(queues, "\n"), "order", ARGV[3] })
hint(worker, "serve")
publish_event("worker.told", { worker = worker, queues = queues })
acts.note(ARGV[4], "serve", "worker", { worker }, "", table.concat(queues, " "))
commit()
return number
