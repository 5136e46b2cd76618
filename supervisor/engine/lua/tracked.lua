#!lua flags=no-writes
-- tracked.lua — the jobs that are tracked, and the ids of those that are gone.
--
-- Called by: looks.tracked (supervisor/engine/commands/queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   offset, how many to pass over
-- ARGV[3]   count, most of them to answer
--
-- Returns   array: an array of jobs, each an array as in job.lua, and an array of jids; tracked last first.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include clock
--- @include view
local offset, count, jobs, expired = tonumber(ARGV[2]), tonumber(ARGV[3]), {}, {}
if count > 0 then
  for _, jid in ipairs(redis.call("ZREVRANGE", P .. "tracked", offset, offset + count - 1)) do
    local job = view(jid)
    if job then jobs[#jobs + 1] = job else expired[#expired + 1] = jid end
  end
end
return { jobs, expired }
