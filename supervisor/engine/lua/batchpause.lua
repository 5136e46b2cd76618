#!lua flags=allow-oom
-- batchpause.lua — pause a batch: its waiting members are not leased. Or let it go on.
--
-- Called by: batches.paused, batches.resumed (supervisor/engine/commands/batches.py)
-- Holds:     INV-1 a job lies in exactly one place; leases park the members as they meet them
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   id
-- ARGV[3]   "1": pause; "": go on
-- ARGV[4]   name of the actor; "" = unknown
-- ARGV[5]   to go on: the rank that the call before has returned; "" = the first call
--
-- Returns   array: 1 if this has changed it, else 0; the rank with which to call again, 0 = all is done.
-- Errors    REFUSED for an unknown batch; WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include this_layout
--- @include clock
--- @include batches
--- @include acts
local id, is_pause = ARGV[2], ARGV[3] == "1"
local is_changed = batches.set_paused(id, is_pause, ARGV[4])
if is_changed then acts.note(ARGV[4], is_pause and "pause" or "resume", "batch", { id }) end
local rank = is_pause and 0 or pauses.lift(id, tonumber(ARGV[5]) or math.huge)
commit()
return { is_changed and 1 or 0, rank }
