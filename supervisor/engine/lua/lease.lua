#!lua flags=allow-oom
-- lease.lua — give a worker the next jobs of its queues, in strict order of the queues.
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
-- ARGV[8..] queues, each once
--
-- Returns   array: now in ms; the time in ms to ask again, 0 = none known (or there may be more at once); token of the
--           first job, the next ones follow it by one each; then per job the array klass, queue, priority, retries,
--           timeout, max_deaths, bytes, failures, deaths, interruptions, jid, expiry in ms, data.
--           A number below the worker's last one is answered with no job: it comes from a dead connection.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include clock
--- @include death
local worker, number = ARGV[2], tonumber(ARGV[3])
local count, starting, ttl, takeover = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == "1"

local SPARE = 16          -- ids looked at beyond what is wanted
local ANSWER_BYTES = 1048576
local UNSIZED_BYTES = 1024 -- a record names its size only above this

local taken, promoted, bytes, capped, more_to_look_at = {}, {}, 0, false, false
local left, soonest = {}, math.huge

local last_number = number and tonumber(redis.call("HGET", P .. "worker:" .. worker, "number"))
if last_number and number < last_number then return { now, 0, 0 } end

local function room() return #taken < count and not capped end

-- Adds a job to the answer: "taken", "full" if its payload does not fit, "phantom" if it is not what its place says.
local function offer(queue, jid, rec)
  local job = redis.call("HMGET", job_key(jid), "klass", "queue", "priority", "retries", "timeout", "max_deaths",
    "bytes", "failures", "deaths", "interruptions", "state", "size")
  if not rec and (not job[1] or job[11] or job[2] ~= queue) then return "phantom" end
  local size = tonumber(job[12]) or UNSIZED_BYTES
  if #taken > 0 and bytes + size > ANSWER_BYTES then
    capped = true
    return "full"
  end
  bytes = bytes + size
  job[11] = jid
  if rec then
    job[9] = rec.deaths or false
    promoted[jid] = rec
  end
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
      phantom(key, member, jid)
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

local function in_order(a, b)
  if a.rank ~= b.rank then return a.rank < b.rank end
  return a.place < b.place
end

-- The same with jobs from elsewhere sorted in; those that find no room are laid down by `settle_down`.
local function merge(queue, key, skip, others, settle_down)
  local found = redis.call("ZRANGE", key, 0, count - #taken, "WITHSCORES")
  local line = {}
  for i = 1, #found, 2 do
    line[#line + 1] = { member = found[i], rank = tonumber(found[i + 1]), place = i }
  end
  if #line > count - #taken then more_to_look_at = true end
  for _, other in ipairs(others) do line[#line + 1] = other end
  table.sort(line, in_order)
  for _, one in ipairs(line) do
    local jid = one.rec and one.rec.jid or string.sub(one.member, skip)
    local verdict = room() and offer(queue, jid, one.rec) or "full"
    if verdict == "full" then
      left[queue] = true
      if one.rec then settle_down(one.rec) end
    elseif one.member then
      if verdict == "taken" then place(key, one.member, false) else phantom(key, one.member, jid) end
    end
  end
end

-- Up to `limit` jobs of a queue that were put off until now.
local function due_jobs(queue, limit)
  local key, found = queue_key(queue, "scheduled"), {}
  local members = redis.call("ZRANGEBYSCORE", key, "-inf", now, "LIMIT", 0, limit)
  for _, member in ipairs(members) do
    local jid = string.sub(member, 14)
    local rec = read_job(jid)
    if rec and rec.state == "scheduled" and rec.queue == queue then
      leave(rec)
      found[#found + 1] = rec
    else
      phantom(key, member, jid)
    end
  end
  return found, #members
end

-- A queue in which leases have expired or times have come.
local function serve_late(queue, expired, due)
  local limit = count - #taken + SPARE
  local turned, fresh, looked = {}, {}, 0
  if expired then
    expired, looked = expired_jobs(queue, limit)
    if looked == limit then more_to_look_at = true end
    for _, rec in ipairs(expired) do
      if lose(rec) == "waiting" then turned[#turned + 1] = { rec = rec, rank = tonumber(rec.turn), place = #turned } end
    end
  end
  if due then
    due, looked = due_jobs(queue, limit)
    if looked == limit then more_to_look_at = true end
    for i, rec in ipairs(due) do
      if rec.turn then
        turned[#turned + 1] = { rec = rec, rank = tonumber(rec.turn), place = i }
      else
        fresh[#fresh + 1] = { rec = rec, rank = tonumber(rec.priority) or 0, place = 1e6 + i }
      end
    end
  end
  merge(queue, queue_key(queue, "front"), 1, turned, to_front)
  merge(queue, queue_key(queue, "waiting"), 14, fresh, to_waiting)
end

local function first_score(queue, part, above)
  local found = redis.call("ZRANGEBYSCORE", queue_key(queue, part), above, "+inf", "LIMIT", 0, 1, "WITHSCORES")
  return tonumber(found[2]) or math.huge
end

local function serve(queue)
  local grace = setting_ms("grace", queue)
  local expiry, due = first_score(queue, "running", "-inf"), first_score(queue, "scheduled", "-inf")
  local expired, is_due = takeover and expiry + grace <= now, due <= now
  if not room() then
    left[queue] = expired or is_due
    walk(queue, queue_key(queue, "front"), 1, 0, 0)
    walk(queue, queue_key(queue, "waiting"), 14, 0, 0)
    return
  end
  if expired or is_due then
    serve_late(queue, expired, is_due)
    if expired then expiry = first_score(queue, "running", "(" .. now - grace) end
    if is_due then due = first_score(queue, "scheduled", "(" .. now) end
    due = math.min(due, nearest[queue] or math.huge)
  else
    walk(queue, queue_key(queue, "front"), 1, 0, count - #taken)
    if not left[queue] then walk(queue, queue_key(queue, "waiting"), 14, 0, count - #taken) end
  end
  if not takeover then expiry = math.max(expiry, now) end
  soonest = math.min(soonest, due, expiry + grace)
end

for i = 8, #ARGV do serve(ARGV[i]) end

local expiries = {}
local function expiry_of(queue)
  expiries[queue] = expiries[queue] or now + (ttl or setting_ms("heartbeat", queue))
  return expiries[queue]
end

local first_token = 0
local function give(i, job, data)
  local queue, jid, token = job[2], job[11], raise("token", 1)
  if i == 1 then first_token = token end
  local owner, expiry, rec = token .. ":" .. worker, expiry_of(queue), promoted[jid]
  if rec then
    rec.state, rec.owner, rec.started = "running", owner, i <= starting and "1" or nil
    save(rec)
  elseif i <= starting then
    set_fields({ job_key(jid), "state", "running", "owner", owner, "started", "1" })
  else
    set_fields({ job_key(jid), "state", "running", "owner", owner })
  end
  place(queue_key(queue, "running"), jid, expiry)
  place(P .. "held:" .. worker, jid, token)
  job[12], job[13] = expiry, data
end

if #taken > 0 then
  local keys = {}
  for i, job in ipairs(taken) do keys[i] = P .. "data:" .. job[11] end
  local data = redis.call("MGET", unpack(keys))
  for i, job in ipairs(taken) do give(i, job, data[i]) end
end

local full = not room()
for i = 8, #ARGV do
  if left[ARGV[i]] then ring(ARGV[i]) elseif not full and not more_to_look_at then silence(ARGV[i]) end
end
if full or soonest == math.huge then soonest = 0 end
if more_to_look_at and not full then soonest = now end

place(P .. "workers", worker, now)
write("ZREMRANGEBYSCORE", P .. "workers", "-inf", now - setting_ms("max-worker-age"))
commit()
return { now, soonest, first_token, unpack(taken) }
