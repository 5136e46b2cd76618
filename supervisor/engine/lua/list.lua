#!lua flags=no-writes
-- list.lua — a page of the jobs of a queue in one state.
--
-- Called by: job_queries.listed (supervisor/engine/commands/job_queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   state: waiting, running, stalled, scheduled, depends, parked, complete, failed
-- ARGV[3]   queue; "" = all of them, for complete and failed
-- ARGV[4]   offset: number of jobs to skip
-- ARGV[5]   count, the most jobs to return
--
-- Returns   array of jobs, each an array as in job.lua. Waiting jobs come in the order front, lane by lane, due, apart,
--           parked with room again; running and stalled ones by the end of their lease, scheduled ones by their time,
--           depends by their put; complete and failed ones newest first, of one queue among the 10,000 that ended last.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include freed
--- @include lane_names
--- @include stored
--- @rest
local state, queue, offset, count = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local MOST_READ = 10000
local jids = {}

local function room() return count - #jids end

-- The places follow each other, so an offset counts through those before.
local function add(members, size, skip)
  for _, member in ipairs(members) do jids[#jids + 1] = string.sub(member, skip) end
  offset = math.max(offset - size, 0)
end

local function add_all_of(key, skip)
  add(redis.call("ZRANGE", key, offset, offset + room() - 1), redis.call("ZCARD", key), skip)
end

local function add_all(part, skip) add_all_of(queue_key(queue, part), skip) end

local function add_between(part, skip, from, to)
  local key = queue_key(queue, part)
  local found = redis.call("ZRANGEBYSCORE", key, from, to, "LIMIT", offset, room())
  add(found, redis.call("ZCOUNT", key, from, to), skip)
end

local function add_newest(key)
  if queue == "" then
    add(redis.call("ZREVRANGE", key, offset, offset + count - 1), 0, 1)
    return
  end
  for first = 0, MOST_READ - 1, 1000 do
    local found = redis.call("ZREVRANGE", key, first, first + 999)
    for i, job in ipairs(peek(found, "queue")) do
      if job[1] == queue then
        if offset > 0 then offset = offset - 1 else jids[#jids + 1] = found[i] end
        if room() == 0 then return end
      end
    end
    if #found < 1000 then return end
  end
end

local lists = {}
function lists.waiting()
  add_all("front", 1)
  for _, lane in ipairs(lane_names(queue)) do
    if room() == 0 then return end
    add_all_of(lanes.line(queue, lane), 14)
  end
  if room() > 0 then add_between("scheduled", 14, "-inf", now) end
  if room() > 0 then add_all("apart", 1) end
  local found = freed.jids(queue)
  if room() > 0 then add({ unpack(found, offset + 1, math.min(#found, offset + room())) }, #found, 1) end
end
function lists.running() add_between("running", 1, "(" .. now, "+inf") end
function lists.stalled() add_between("running", 1, "-inf", now) end
function lists.scheduled() add_between("scheduled", 14, "(" .. now, "+inf") end
function lists.depends() add_all("depends", 1) end
-- Jobs with room again are left out. Those before the first one returned add to the offset.
function lists.parked()
  local found, is_free = freed.jids(queue)
  local key, ranks, from = queue_key(queue, "parked"), {}, offset
  for _, jid in ipairs(found) do ranks[#ranks + 1] = redis.call("ZRANK", key, jid) or nil end
  table.sort(ranks)
  for _, rank in ipairs(ranks) do
    if rank <= from then from = from + 1 end
  end
  for _, jid in ipairs(redis.call("ZRANGE", key, from, from + count + #ranks - 1)) do
    if room() > 0 and not is_free[jid] then jids[#jids + 1] = jid end
  end
end
function lists.complete() add_newest(P .. "complete") end
function lists.failed() add_newest(P .. "failed") end

if count > 0 then lists[state]() end
local shown = state == "parked" and "waiting" or state
local answer = {}
for _, jid in ipairs(jids) do
  local job = freed.view(jid)
  if job and job[2] == shown then answer[#answer + 1] = job end
end
return answer
