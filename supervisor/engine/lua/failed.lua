#!lua flags=no-writes
-- failed.lua — the groups of failed jobs, or the jobs of one group, newest first.
--
-- Called by: job_queries.failed_groups, job_queries.failed_jobs (supervisor/engine/commands/job_queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   group; "" = all groups
-- ARGV[3]   start: number of jobs to skip
-- ARGV[4]   limit: the most jobs to return
--
-- Returns   all groups: array of group, count, group, count …; one group: array of its count, then its jobs, each an
--           array as in job.lua.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include view
local group, start, limit = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local answer = {}
if group == "" then
  for _, name in ipairs(redis.call("ZRANGE", P .. "groups", 0, -1)) do
    answer[#answer + 1] = name
    answer[#answer + 1] = redis.call("ZCARD", P .. "failed:" .. name)
  end
  return answer
end
answer[1] = redis.call("ZCARD", P .. "failed:" .. group)
if limit > 0 then
  for _, jid in ipairs(redis.call("ZREVRANGE", P .. "failed:" .. group, start, start + limit - 1)) do
    local job = view(jid)
    if job then answer[#answer + 1] = job end
  end
end
return answer
