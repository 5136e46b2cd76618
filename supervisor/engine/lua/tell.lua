#!lua flags=allow-oom
-- tell.lua — leave a hint in a worker's mailbox. Hints may be lost.
--
-- Called by: mailbox.tell (supervisor/engine/commands/mailbox.py)
-- Holds:     INV-12 the 100 newest messages, for an hour
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   worker
-- ARGV[2]   message, any bytes
-- Returns   how many messages lie in the mailbox now.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include while_moving
--- @include this_layout
--- @include plan
local mail = P .. "mail:" .. ARGV[1]
local n = redis.call("LLEN", mail) + 1
push(mail, ARGV[2], 100, 3600000)
commit()
return math.min(n, 100)
