#!lua flags=no-writes
-- why.lua — the facts that tell why a job, or a queue, stands where it does.
--
-- Called by: facts.of_job, facts.of_queue (supervisor/engine/commands/facts.py)
-- Holds:     nothing is written, and no part of the work grows with the number of jobs
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   jid; "" = the queue itself is asked about
-- ARGV[3]   queue, if there is no jid
--
-- Returns   array: the job as in job.lua | nil, then names and values of facts; absent ones are left out. Values are
--           texts, integers (times in ms) or arrays of texts; deletions are acts, as audit.lua answers them.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include lives
--- @include config
--- @include depths
--- @include view
--- @include limits
--- @include freed
--- @include pauses
--- @include lanes
--- @include memory
--- @include overdue
--- @include remembered
--- @rest
local WORKERS, SKILLS, NAMED, GENERATIONS, PEERS_MS = 1000, 1000, 5, 100, 3600000
local ACTS, NAMES_OF_ACT = 1000, 20 -- that are looked at; that acts.lua names at the most
local jid, queue = ARGV[2], ARGV[3]
local answer = { false }
local function tell(name, value)
  if value == nil or value == false then return end
  answer[#answer + 1] = name
  answer[#answer + 1] = value
end

-- Return whether a worker takes requests: those that number their exchanges do.
local function answers(worker) return redis.call("HEXISTS", P .. "worker:" .. worker, "number") == 1 end

local function tell_living(klass)
  local serving, knowing, held = {}, 0, 0
  local names = redis.call("ZREVRANGEBYSCORE", P .. "workers-seen", "+inf", now - LIVES, "LIMIT", 0, WORKERS)
  for _, worker in ipairs(names) do
    local skills = P .. "skills:" .. worker
    local n, has = redis.call("ZCARD", skills), redis.call("ZMSCORE", skills, "queue:" .. queue, "klass:" .. klass)
    --   A worker that has not reported all of them may have any.
    local may_be_any = n == 0 or n >= SKILLS
    if has[1] or may_be_any then
      serving[#serving + 1] = worker
      held = held + redis.call("ZCARD", P .. "held:" .. worker)
      if has[2] or may_be_any then knowing = knowing + 1 end
    end
  end
  tell("living", #names)
  tell("serving", #serving)
  local names_told, answering = { unpack(serving, 1, NAMED) }, {}
  for _, worker in ipairs(names_told) do
    if answers(worker) then answering[#answering + 1] = worker end
  end
  tell("serving_names", names_told)
  tell("answering_names", answering)
  tell("serving_hold", held)
  tell("knowing", knowing)
end

-- Tell of places by what their jobs do now: a lease has expired, a time has come, a limit has room again.
local function tell_places()
  local function size(part) return redis.call("ZCARD", queue_key(queue, part)) end
  local function past(part) return redis.call("ZCOUNT", queue_key(queue, part), "-inf", now) end
  local stalled, due, parked = past("running"), past("scheduled"), size("parked")
  local has_room = freed.count(queue, parked)
  tell("front", size("front"))
  tell("waiting", size("waiting") + lanes.size(queue))
  tell("in_paused_lanes", in_paused_lanes(queue))
  tell("lanes", redis.call("ZCARD", lanes.index(queue)))
  tell("running", size("running") - stalled)
  tell("stalled", stalled)
  tell("scheduled", size("scheduled") - due)
  tell("due", due)
  tell("depends", size("depends"))
  tell("parked", parked - has_room)
  tell("freed", has_room)
  tell("apart", size("apart"))
  tell("entries", redis.call("LLEN", P .. "in:" .. queue))
end

local function tell_queue()
  tell("queue", queue)
  if setting("paused", queue) ~= 0 then
    tell("paused", redis.call("HGET", P .. "options", "by:paused-" .. queue) or "")
  end
  local most = setting("max-concurrency", queue)
  if most > 0 then tell("max_concurrency", most) end
  tell_places()
  tell("late", overdue_recurrences(queue))
  tell("running_jids", redis.call("ZRANGE", queue_key(queue, "running"), 0, NAMED - 1))
end

-- Tell of the first limit of a job that has no room; nothing if all have.
local function tell_limit(rec)
  local key, later
  for _, one in ipairs(limits_in(rec.limit)) do
    local has_room, until_then = limits.room(one, 0)
    if not has_room then
      key, later = one, until_then
      break
    end
  end
  if not key then return end
  tell("full_limit", key)
  tell("limit_until", later)
  local set = redis.call("HMGET", P .. "limit:" .. key, "running", "by")
  tell("limit_running", tonumber(set[1] or nil))
  tell("limit_by", set[2])
  tell("limit_in_use", redis.call("ZCARD", P .. "holders:" .. key))
  tell("limit_holders", redis.call("ZRANGE", P .. "holders:" .. key, 0, NAMED - 1))
end

-- Tell of the pause of a job's batch, or of one around it.
local function tell_pause(rec)
  local batch = rec.batch and pauses.over(rec.batch)
  if not batch then return end
  tell("paused_batch", batch)
  tell("batch_pause", redis.call("HGET", P .. "batch:" .. batch, "paused"))
end

-- Tell how many jobs of its own line are before a waiting one.
local function tell_place(rec)
  if rec.turn and not rec.aside then
    tell("is_in_front", 1)
    tell("ahead", redis.call("ZRANK", queue_key(queue, "front"), jid))
    return
  end
  local line = lanes.line(queue, rec.lane or "")
  tell("ahead", redis.call("ZRANK", line, member_of(jid, rec.aside and rec.turn or rec.seq)))
  tell("lane_pause", lanes.pause_of(queue, rec.lane or ""))
end

-- Tell which of the jobs that this one waits for waits for no other itself.
local function tell_root()
  local at, generations = jid, 0
  while generations < GENERATIONS do
    local above = redis.call("ZRANGE", P .. "dependencies:" .. at, 0, 0)[1]
    if not above then break end
    at, generations = above, generations + 1
  end
  if generations == 0 then return end
  local root = peek({ at }, "state", "group")[1]
  tell("root", at)
  tell("root_generations", generations)
  tell("root_state", root[1] or "waiting")
  tell("root_group", root[2])
end

local function tell_job(rec)
  tell("popped", tonumber(rec.popped))
  local worker = string.match(rec.owner or "", "^%d+:(.+)$")
  if worker and answers(worker) then tell("holder_answers", 1) end
  tell("shapes", rec.shapes)
  if rec.parked == "klass" then tell("is_apart", 1) end
  tell_place(rec)
  tell_pause(rec)
  tell_limit(rec)
  if rec.state == "depends" then tell_root() end
  if rec.state == "complete" then tell("completed", tonumber(redis.call("ZSCORE", P .. "complete", jid) or nil)) end
  if rec.state == "failed" and rec.group then
    local group = P .. "failed:" .. rec.group
    local own = tonumber(redis.call("ZSCORE", group, jid) or 0) >= now - PEERS_MS and 1 or 0
    tell("peers", redis.call("ZCOUNT", group, now - PEERS_MS, "+inf") - own)
  end
end

local function tell_memory()
  local used, most, evicted, policy = memory_of_server()
  tell("redis_used_bytes", used)
  tell("redis_most_bytes", most)
  tell("redis_evicted", evicted)
  tell("redis_policy", policy)
end

-- Tell of the newest deletions of more jobs than an act names, unless each of their jobs is remembered.
local function tell_deletions()
  local is_full, found = redis.call("ZCARD", P .. "cancelled") >= REMEMBERED, {}
  local acts = redis.call("LRANGE", P .. "audit", -ACTS, -1)
  for i = #acts, 1, -1 do
    local when, number, act = string.match(acts[i], "^(%d+)\n(%d+)\n[^\n]*\n(%l+)\n")
    local is_large = (act == "delete" or act == "cancel") and tonumber(number) > NAMES_OF_ACT
    if is_large and (is_full or tonumber(when) < now - REMEMBERED_MS) then found[#found + 1] = acts[i] end
    if #found == NAMED then break end
  end
  tell("deletions", #found > 0 and found)
end

-- Tell what may have become of a job of which there is no record.
local function tell_gone()
  tell("cancelled", tonumber(redis.call("ZSCORE", P .. "cancelled", jid) or nil))
  tell("cancelled_by", redis.call("HGET", P .. "cancelled-by", jid))
  tell("dropped", tonumber(redis.call("ZSCORE", P .. "dropped", jid) or nil))
  local first = tonumber(redis.call("ZRANGE", P .. "complete", 0, 0, "WITHSCORES")[2])
  tell("complete_since", first and math.floor(first))
  tell_deletions()
  tell_memory()
end

-- Tell of a recurrence. Its own jobs have other jids.
local function tell_recurrence(found)
  tell("next", tonumber(found[3]))
  if tonumber(found[4] or 0) > 0 then tell("last_jid", jid .. "-" .. found[4]) end
end

tell("now", now)
local rec, klass = jid ~= "" and stored_job(jid), ""
if jid ~= "" and not rec then
  local found = redis.call("HMGET", P .. "recur:" .. jid, "queue", "klass", "next", "count")
  if not found[1] then
    tell_gone()
    return answer
  end
  queue, klass = found[1], found[2] or ""
  tell_recurrence(found)
end
if rec then
  queue, klass, answer[1] = rec.queue, rec.klass, view(jid)
  tell_job(rec)
end
if jid == "" then tell_memory() end
tell_queue()
tell_living(klass)
return answer
