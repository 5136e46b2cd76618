#!lua flags=no-writes
-- concerns.lua — what in a namespace will wait until a person acts, or has gone wrong unseen.
--
-- Called by: concerns.read (supervisor/engine/commands/concerns.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   offset: number of known queues to skip, in the order of their first put
--
-- Returns   offset of the next call, -1 after the last queue; an array for each queue of concern: queue, 1 if it has
--           jobs to lease and no live worker serves it, for how many ms its first parked job has been parked (-1: none
--           is), how many of its recurrences are late, and of how many the last job lies in failed. By offset 0 also:
--           the number of failed jobs; group, count, group, count … of the groups that changed last; the limits of 0
--           that hold jobs up; bytes that the server uses and may use (0: no bound), and keys that it has evicted; how
--           many batches have not ended, and how many have been open for an hour. Else 0 and empty arrays, as for what
--           the server does not tell.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include depths
--- @include lives
--- @include memory
--- @include open_batches
--- @include overdue
local READS = 10000 -- calls of Redis for queues
local MOST_WORKERS, MOST_NAMED = 1000, 50 -- workers; groups, and limits
local MOST_LIMITS, MOST_RECURRING, MOST_SKILLS = 1000, 50, 1000 -- that are looked at: of all, per queue, per worker
local offset, left = tonumber(ARGV[2]), READS

local workers, serve_more = {}, false
for _, worker in ipairs(redis.call(
  "ZREVRANGEBYSCORE", P .. "workers-seen", "+inf", now - LIVES, "LIMIT", 0, MOST_WORKERS)) do
  workers[#workers + 1] = P .. "skills:" .. worker
  --   It has reported only the first of its klasses or queues.
  serve_more = serve_more or redis.call("ZCARD", workers[#workers]) >= MOST_SKILLS
end
serve_more = serve_more or #workers == MOST_WORKERS

local function is_served(queue)
  for i, skills in ipairs(workers) do
    left = left - 1
    if redis.call("ZSCORE", skills, "queue:" .. queue) then
      --     The next queue is probably served by the one that serves this one.
      workers[1], workers[i] = workers[i], workers[1]
      return true
    end
  end
  return serve_more
end

local function has_jobs(queue)
  return in_line(queue) > 0 or redis.call("ZCOUNT", queue_key(queue, "scheduled"), "-inf", now) > 0
    or redis.call("ZCOUNT", queue_key(queue, "running"), "-inf", now) > 0
    or redis.call("ZCARD", queue_key(queue, "apart")) > 0
end

-- Return how many of the first recurrences have a last job that has failed for good.
local function failed_last(queue)
  local jids = redis.call("ZRANGE", queue_key(queue, "recurring"), 0, MOST_RECURRING - 1)
  local jobs = {}
  for i, jid in ipairs(jids) do
    jobs[i] = jid .. "-" .. (redis.call("HGET", P .. "recur:" .. jid, "count") or "0")
  end
  left = left - #jids
  local n = 0
  for _, score in ipairs(#jobs > 0 and redis.call("ZMSCORE", P .. "failed", unpack(jobs)) or {}) do
    if score then n = n + 1 end
  end
  return n
end

local function parked_for(queue)
  local first = redis.call("ZRANGE", queue_key(queue, "parked"), 0, 0, "WITHSCORES")
  return first[2] and math.max(0, now - math.floor(first[2])) or -1
end

local function of_queue(queue)
  left = left - 10
  local unserved = has_jobs(queue) and not is_served(queue) and 1 or 0
  return unserved, parked_for(queue), overdue_recurrences(queue), failed_last(queue)
end

local rows, queues = {}, redis.call("ZRANGE", P .. "queues", offset, offset + 999)
local read = 0
for _, queue in ipairs(queues) do
  if left <= 0 then break end
  read = read + 1
  local unserved, parked, late, failed = of_queue(queue)
  if unserved > 0 or parked >= 0 or late > 0 or failed > 0 then
    rows[#rows + 1] = { queue, unserved, parked, late, failed }
  end
end

local failed, groups, closed, memory, running, open = 0, {}, {}, {}, 0, 0
if offset == 0 then
  failed = redis.call("ZCARD", P .. "failed")
  for _, group in ipairs(redis.call("ZREVRANGE", P .. "groups", 0, MOST_NAMED - 1)) do
    groups[#groups + 1], groups[#groups + 2] = group, redis.call("ZCARD", P .. "failed:" .. group)
  end
  for _, key in ipairs(redis.call("ZRANGE", P .. "limits", 0, MOST_LIMITS - 1)) do
    if redis.call("HGET", P .. "limit:" .. key, "running") == "0" and redis.call("EXISTS", P .. "limited:" .. key) == 1
      and #closed < MOST_NAMED then
      closed[#closed + 1] = key
    end
  end
  running, open = redis.call("ZCARD", P .. "batches"), open_for_long()
  local used, most, evicted = memory_of_server()
  if used then memory = { used, most, evicted } end
end
local following = (read < #queues or #queues == 1000) and offset + read or -1
return { following, rows, failed, groups, closed, memory, running, open }
