#!lua flags=allow-oom
-- batchclose.lua — close a batch: it ends with its members.
--
-- Called by: batches.closed (supervisor/engine/commands/batches.py)
-- Holds:     INV-2 a callback is put in the step in which the batch ends
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   id
-- ARGV[3]   "1": put no callback; else ""
--
-- Returns   1, also if it was closed already; 0 if there is no such batch.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include batches
local is_known = batches.close(ARGV[2], ARGV[3] == "1")
commit()
return is_known and 1 or 0
