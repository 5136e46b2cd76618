#!lua flags=allow-oom
-- unheard.lua — take the cancelled jobs that no worker had, so that one worker's log tells of each.
--
-- Called by: maintenance.unheard (supervisor/engine/commands/maintenance.py)
-- Holds:     INV-12 the newest 1,000 wait, for an hour
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
--
-- Returns   array of the jobs, the first cancelled first, as lines: jid, queue, klass, actor | "".
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include plan
local key = P .. "unheard"
local jobs = redis.call("LRANGE", key, 0, 999)
if #jobs > 0 then shift(key, -#jobs) end
commit()
return jobs
