#!lua flags=no-writes
-- peek.lua — the jobs that the next leases of a queue would give, were it not paused or full.
--
-- Called by: looks.peek (supervisor/engine/looks.py)
-- Holds:     nothing is written: what is due or expired stays where it is
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
-- ARGV[3]   count, most jobs to answer
--
-- Returns   array of jobs, each an array as in job.lua, in the order in which a lease would give them.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include clock
--- @include view
--- @include late
local SPARE = 16 -- late ones looked at beyond what is wanted, as a lease does
local queue, count, answer = ARGV[2], tonumber(ARGV[3]), {}
if count == 0 then return answer end

-- What lies in a place, each with its score as its rank.
local function line_of(part, skip)
  local found, line = redis.call("ZRANGE", queue_key(queue, part), 0, count - 1, "WITHSCORES"), {}
  for i = 1, #found, 2 do
    line[#line + 1] = { jid = string.sub(found[i], skip), rank = tonumber(found[i + 1]), place = i }
  end
  return line
end

local function add_up(line)
  table.sort(line, late.in_order)
  for _, one in ipairs(line) do
    if #answer == count then return end
    local job = view(one.jid)
    if job and (job[2] == "waiting" or job[2] == "stalled") then answer[#answer + 1] = job end
  end
end

local turned, fresh = line_of("front", 1), line_of("waiting", 14)

-- A job that was lost in the hands of its worker is given again at once, or it will have to wait, or has failed.
local function goes_ahead(rec)
  if not rec.started then return true end
  local limit = tonumber(rec.max_deaths) or setting("max-deaths", queue)
  return death.after_death((tonumber(rec.deaths) or 0) + 1, limit) == "waiting"
end

for i, rec in ipairs((death.expired_jobs(queue, count + SPARE))) do
  local token = owner_of(rec)
  if goes_ahead(rec) then
    turned[#turned + 1] = { jid = rec.jid, rank = tonumber(rec.turn or token), place = i }
  end
end

local due = redis.call("ZRANGEBYSCORE", queue_key(queue, "scheduled"), "-inf", now, "LIMIT", 0, count + SPARE)
for i, member in ipairs(due) do
  local jid = string.sub(member, 14)
  local rec = read_job(jid)
  local line = rec and rec.turn and turned or fresh
  line[#line + 1] = { jid = jid, rank = rec and tonumber(rec.turn or rec.priority) or 0, place = 1e6 + i }
end

add_up(turned)
add_up(fresh)
return answer
