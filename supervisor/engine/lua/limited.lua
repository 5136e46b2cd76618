#!lua flags=no-writes
-- limited.lua — the running jobs with a slot of a limit, and the jobs parked under it.
--
-- Called by: limits.jobs (supervisor/engine/commands/limits.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   key of the limit
-- ARGV[2]   offset: number of jobs to skip, of each kind
-- ARGV[3]   count, the most jobs to return, of each kind
--
-- Returns   array of two arrays: the holders in the order of their leases, each jid, queue | nil, worker | nil; and the
--           parked jobs by queue and lane, among the first 10,000 queues and lanes, each jid, queue, lane.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include stored
--- @include parked
local MOST_READ = 10000 -- queues and lanes
local key, offset, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if count == 0 then return { {}, {} } end

local holders, parked, passed, left = {}, {}, 0, MOST_READ
local holding = redis.call("ZRANGE", P .. "holders:" .. key, offset, offset + count - 1)
for i, job in ipairs(peek(holding, "queue", "owner")) do
  holders[i] = { holding[i], job[1], string.match(job[2] or "", "^%d+:(.+)$") or false }
end

-- Add the wanted jobs of one line; `passed` jobs lay in the lines before it.
local function add_line(queue, lane, line)
  local size, skip = redis.call("ZCARD", line), math.max(offset - passed, 0)
  passed = passed + math.min(size, skip)
  if skip >= size then return end
  for _, member in ipairs(redis.call("ZRANGE", line, skip, skip + count - #parked - 1)) do
    parked[#parked + 1] = { string.sub(member, 14), queue, lane }
  end
end

for _, queue in ipairs(redis.call("ZRANGE", P .. "limited:" .. key, 0, MOST_READ - 1)) do
  if #parked == count or left <= 0 then break end
  local lines = redis.call("ZRANGE", P .. "limited:" .. key .. "\n" .. queue, 0, left - 1)
  left = left - 1 - #lines
  for _, line in ipairs(lines) do
    if #parked == count then break end
    add_line(queue, (parts_of(line)), P .. line_in("limited:" .. key, queue, line))
  end
end
return { holders, parked }
