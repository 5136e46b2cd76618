#!lua flags=no-writes
-- tagged.lua — the jobs that have a tag.
--
-- Called by: job_queries.tagged (supervisor/engine/commands/job_queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   tag
-- ARGV[3]   offset: number of jobs to skip
-- ARGV[4]   count, the most jobs to return
--
-- Returns   array: how many jobs have the tag, then a page of them, oldest tagged first, each an array as in job.lua.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include view
local key, offset, count = P .. "tag:" .. ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local answer = { redis.call("ZCARD", key) }
if count > 0 then
  for _, jid in ipairs(redis.call("ZRANGE", key, offset, offset + count - 1)) do
    local job = view(jid)
    if job then answer[#answer + 1] = job end
  end
end
return answer
