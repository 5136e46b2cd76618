#!lua
-- await.lua — register a waiter of a job. The end of the job pushes a token to ended:<jid> for each waiter.
--
-- Called by: waits.wait_for (supervisor/engine/commands/waits.py)
-- Holds:     INV-12 the tokens expire
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   jid
--
-- Returns   the job's state as it is stored, "waiting" if none is; nil if there is no such job.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include record
local rec = read_job(ARGV[2])
if not rec then return false end
if rec.state == "failed" or rec.state == "complete" then return rec.state end
rec.awaited = math.min((tonumber(rec.awaited) or 0) + 1, 100)
commit()
return rec.state or "waiting"
