#!lua flags=allow-oom
-- lease.lua — give a worker the next jobs of its queues.
--
-- Called by: commands.lease (supervisor/engine/commands.py)
-- Holds:     INV-3 tokens only grow; INV-4 and INV-6 taking over a lost worker's job counts a death if it had started
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   number of the exchange; "" = none
-- ARGV[4]   count, most jobs to give, 0 to 1000; 0 only rings on
-- ARGV[5]   starting, how many of them, from the first on, start at once
-- ARGV[6]   ttl of the leases, ms; "" = the queue's heartbeat
-- ARGV[7]   "1" if jobs of lost workers may be taken over
-- ARGV[8]   order: strict, round-robin, random or weighted
-- ARGV[9]   seed of what is drawn, 0 to 2^31
-- ARGV[10]  "1" if a bell has called for this lease
-- ARGV[11..] queue, weight; each queue once
--
-- Returns   array: now in ms; the time in ms to ask again, 0 = none known (or there may be more at once); token of the
--           first job, the next ones follow it by one each; due cron recurrences, each an array jid, cron, tz, time in
--           ms, backlog; then per job the array klass, queue, priority, retries, timeout, max_deaths, bytes, failures,
--           deaths, interruptions, jid, expiry in ms, data, tags.
--           A number below the worker's last one is answered with no job: it comes from a dead connection.
-- Errors    DEREGISTERED if a worker that had a number is not known any more. WRONGTYPE for a foreign key of ours.
--           Nothing has changed then.

--- @include clock
--- @include late
--- @include limits
--- @include turns
local worker, number = ARGV[2], tonumber(ARGV[3])
local count, starting, ttl, takeover = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == "1"
local order, exchange = ARGV[8], P .. "worker:" .. worker

local SPARE = 16           -- ids looked at beyond what is wanted
local ANSWER_BYTES = 1048576
local LONGEST_WAIT = 30000 -- of a worker for a bell, before it asks by itself
local UNSIZED_BYTES = 1024 -- a record names its size only above this

local taken, bytes, capped, more_to_look_at = {}, 0, false, false
local left, soonest, limit, due_crons = {}, math.huge, 0, {}

if number then
  local last_number = tonumber(redis.call("HGET", exchange, "number"))
  if last_number and number < last_number then return { now, 0, 0, {} } end
  if not last_number and number > 1 then refuse("DEREGISTERED", "worker " .. worker .. " is not known") end
end

local function room() return #taken < limit and not capped end

-- Adds a job to the answer: "taken", "full" if its payload does not fit, "phantom" if it is not what its place says.
-- `rec` is one that this script has taken out of its place, or made.
local function offer(queue, jid, rec)
  local job
  if rec then
    job = {
      rec.klass, queue, rec.priority or false, rec.retries or false, rec.timeout or false,
      rec.max_deaths or false, rec.bytes or false, rec.failures or false, rec.deaths or false,
      rec.interruptions or false, false, rec.size, rec.put, rec.since, true,
    }
  else
    job = redis.call("HMGET", job_key(jid), "klass", "queue", "priority", "retries", "timeout", "max_deaths",
      "bytes", "failures", "deaths", "interruptions", "state", "size", "put", "since", "special")
    if not job[1] or job[11] or job[2] ~= queue then return "phantom" end
  end
  local size = tonumber(job[12]) or UNSIZED_BYTES
  if #taken > 0 and bytes + size > ANSWER_BYTES then
    capped = true
    return "full"
  end
  bytes = bytes + size
  job[11] = jid
  spread(queue, "wait", now - (job[14] or job[13]))
  taken[#taken + 1] = job
  return "taken"
end

-- Takes jobs from the head of one sorted set. `skip` is where the jid begins in a member.
local function walk(queue, key, skip, first, last)
  local members, missed = redis.call("ZRANGE", key, first, last), 0
  for _, member in ipairs(members) do
    if not room() then
      left[queue] = true
      return
    end
    local jid = string.sub(member, skip)
    local verdict = offer(queue, jid)
    if verdict == "full" then
      left[queue] = true
      return
    elseif verdict == "taken" then
      place(key, member, false)
    else
      moves.phantom(key, member, jid)
      missed = missed + 1
    end
  end
  if missed == 0 or #members <= last - first then return end
  if first > 0 then
    more_to_look_at = true
  else
    walk(queue, key, skip, last + 1, last + SPARE - 1)
  end
end

-- The same with jobs sorted in that lie nowhere; those that find no room are laid down.
local function merge(queue, key, skip, others, lay_down)
  local line, more = late.merged(key, math.max(0, limit - #taken), others)
  more_to_look_at = more_to_look_at or more
  for _, one in ipairs(line) do
    local jid = one.rec and one.rec.jid or string.sub(one.member, skip)
    local verdict = room() and offer(queue, jid, one.rec) or "full"
    if verdict == "full" then
      left[queue] = true
      if one.rec then lay_down(one.rec) end
    elseif one.member then
      if verdict == "taken" then place(key, one.member, false) else moves.phantom(key, one.member, jid) end
    end
  end
end

-- The first of the times of a queue, or the first above a time.
local function first_score(queue, part, above)
  local key, found = queue_key(queue, part), nil
  if above then
    found = redis.call("ZRANGEBYSCORE", key, "(" .. above, "+inf", "LIMIT", 0, 1, "WITHSCORES")
  else
    found = redis.call("ZRANGE", key, 0, 0, "WITHSCORES")
  end
  return tonumber(found[2]) or math.huge
end

-- Whether there is more than this lease may have.
local function look(queue)
  limit = #taken
  walk(queue, queue_key(queue, "front"), 1, 0, 0)
  walk(queue, queue_key(queue, "waiting"), 14, 0, 0)
  if allowed(queue, 1, 0) == 0 then left[queue] = nil end
end

-- Gives up to `most` jobs of a queue.
local function serve(queue, most)
  local grace, paused = setting_ms("grace", queue), setting("paused", queue) > 0
  local expiry = first_score(queue, "running")
  local due, spawns = first_score(queue, "scheduled"), first_score(queue, "recurring")
  local is_expired, is_due, spawns_now = takeover and expiry + grace <= now, due <= now, spawns <= now
  if expiry <= now then death.announce_stalled(queue) end
  if most > 0 or paused and is_expired then
    local come = is_expired or not paused and (is_due or spawns_now)
    local found = come and late.collect(
      queue, most + SPARE, is_expired, is_due and not paused, spawns_now and not paused, due_crons)
    local may_start = allowed(queue, most, found and found.freed or 0)
    limit = #taken + may_start
    if found then
      more_to_look_at = more_to_look_at or found.more
      merge(queue, queue_key(queue, "front"), 1, found.front, moves.to_front)
      merge(queue, queue_key(queue, "waiting"), 14, found.waiting, moves.to_waiting)
    else
      walk(queue, queue_key(queue, "front"), 1, 0, limit - #taken)
      if not left[queue] then walk(queue, queue_key(queue, "waiting"), 14, 0, limit - #taken) end
    end
    -- What is held back is nobody's to fetch before something rings.
    if may_start < most and not capped then left[queue] = nil end
  else
    left[queue] = not paused and (is_expired or is_due or spawns_now)
    look(queue)
  end
  if #taken >= count then return end
  if is_expired then expiry = first_score(queue, "running", now - grace) end
  if is_due then due = first_score(queue, "scheduled", now) end
  if spawns_now then spawns = first_score(queue, "recurring", now) end
  if not takeover then expiry = math.max(expiry, now) end
  if not paused then soonest = math.min(soonest, due, spawns, nearest[queue] or math.huge) end
  soonest = math.min(soonest, expiry + grace)
end

local queues, weights = {}, {}
for i = 11, #ARGV, 2 do
  queues[#queues + 1] = ARGV[i]
  weights[#weights + 1] = tonumber(ARGV[i + 1])
end

-- Each queue gives what its turns amount to; the answer is then in the order of the turns.
local function serve_in_turns()
  local available, wanted, last, by_queue, in_turn = {}, {}, 0, {}, {}
  local cursor = order == "round-robin" and redis.call("HGET", exchange, "cursor")
  for i, queue in ipairs(queues) do
    available[i], wanted[i], by_queue[i] = math.min(count, turns.available(queue, takeover)), 0, {}
    if queue == cursor then last = i end
  end
  local sequence = turns.take(order, queues, available, weights, count, last)
  for _, i in ipairs(sequence) do wanted[i] = wanted[i] + 1 end
  for i, queue in ipairs(queues) do
    local before = #taken
    serve(queue, wanted[i])
    for j = before + 1, #taken do table.insert(by_queue[i], taken[j]) end
  end
  for _, i in ipairs(sequence) do
    local job = table.remove(by_queue[i], 1)
    if job then
      in_turn[#in_turn + 1] = job
      cursor = queues[i]
    end
  end
  taken = in_turn
  if order == "round-robin" and #taken > 0 then
    set_fields({ exchange, "cursor", cursor })
    expire(exchange, setting_ms("max-worker-age"))
  end
end

math.randomseed(tonumber(ARGV[9]))
if order == "strict" or #queues == 1 then
  for _, queue in ipairs(queues) do serve(queue, count - #taken) end
else
  serve_in_turns()
end

local expiries = {}
local function expiry_of(queue)
  expiries[queue] = expiries[queue] or now + (ttl or setting_ms("heartbeat", queue))
  return expiries[queue]
end

local first_token = 0
local function give(i, job, data)
  local queue, jid, token = job[2], job[11], raise("token", 1)
  if i == 1 then first_token = token end
  local expiry, key, owner = expiry_of(queue), P .. "data:" .. jid, token .. ":" .. worker
  local rec = records[jid] or (job[15] or heard()) and read_job(jid)
  if rec then
    patch(jid, { state = "running", owner = owner, popped = now, started = i <= starting and 1 or nil })
  elseif i <= starting then
    set_fields({ job_key(jid), "state", "running", "owner", owner, "popped", now, "started", 1 })
  else
    set_fields({ job_key(jid), "state", "running", "owner", owner, "popped", now })
  end
  place(queue_key(queue, "running"), jid, expiry)
  place(P .. "held:" .. worker, jid, token)
  local names = false
  if rec then
    tell_of("lease.granted", rec, { worker = worker, token = token })
    names = rec.tagged and table.concat(tagging.of(rec), "\n") or false
  end
  job[12], job[13], job[14], job[15] = expiry, strings[key] or data, names, nil
end

if #taken > 0 then
  local keys = {}
  for i, job in ipairs(taken) do keys[i] = P .. "data:" .. job[11] end
  local data = redis.call("MGET", unpack(keys))
  for i, job in ipairs(taken) do give(i, job, data[i]) end
end

local full = #taken >= count or capped

-- Who was called and is full now may be the only one that knows when there will be more: others wait, but not for ever.
local function is_near(queue)
  local first = math.min(first_score(queue, "scheduled", now), first_score(queue, "recurring", now))
  return first <= now + LONGEST_WAIT
end

for _, queue in ipairs(queues) do
  if left[queue] or full and ARGV[10] == "1" and is_near(queue) then
    ring(queue)
  elseif not full and not more_to_look_at then
    silence(queue)
  end
end
if full or soonest == math.huge then soonest = 0 end
if more_to_look_at and not full then soonest = now end

place(P .. "workers", worker, now)
if number then expire(exchange, setting_ms("max-worker-age")) end
commit()
return { now, soonest, first_token, due_crons, unpack(taken) }
