#!lua flags=no-writes
-- tracked.lua — the tracked jobs, and the ids of those that are gone.
--
-- Called by: job_queries.tracked (supervisor/engine/commands/job_queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   offset: number of jobs to skip
-- ARGV[3]   count, the most jobs to return
--
-- Returns   array: an array of jobs, each an array as in job.lua, and an array of jids; the last tracked first.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include view
local offset, count, jobs, expired = tonumber(ARGV[2]), tonumber(ARGV[3]), {}, {}
if count > 0 then
  for _, jid in ipairs(redis.call("ZREVRANGE", P .. "tracked-jobs", offset, offset + count - 1)) do
    local job = view(jid)
    if job then jobs[#jobs + 1] = job else expired[#expired + 1] = jid end
  end
end
return { jobs, expired }
