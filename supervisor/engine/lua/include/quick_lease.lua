-- quick_lease.lua: a lease of queues in which jobs only wait: without lanes, limits with room, entries or recurrences,
-- with nothing in front, due or expired, and of jobs that have only record and data.
--- @include quick
--- @include quick_times
--- @include leased
--- @include served
--- @include prefetched
-- Return whether jobs are parked under limits that only a free slot can help: nothing can be done for them now.
local function quick_is_held(checks) return tonumber(redis.call("ZRANGE", checks, 0, 0, "WITHSCORES")[2]) == 2 ^ 53 end

-- Return what waits in a queue, one more than `most`; when the next job is due, and when there will be more; and
-- whether the queue is quiet. nil if this path does not suffice.
local function quick_read_queue(queue, most, takeover)
  local of_queue, entries_key = P .. "queue:" .. queue .. ":", P .. "in:" .. queue
  local others = redis.call(
    "EXISTS", of_queue .. "front", of_queue .. "lanes", of_queue .. "limits", of_queue .. "recurring",
    of_queue .. "klasses", entries_key
  )
  if others > 0 and not (others == 1 and quick_is_held(of_queue .. "limits")) then return nil end
  if setting("paused", queue) > 0 or setting("max-concurrency", queue) > 0 then return nil end
  local grace = setting_ms("grace", queue)
  local expiry = tonumber(redis.call("ZRANGE", of_queue .. "running", 0, 0, "WITHSCORES")[2]) or math.huge
  local due = tonumber(redis.call("ZRANGE", of_queue .. "scheduled", 0, 0, "WITHSCORES")[2]) or math.huge
  if due <= now or takeover and expiry + grace <= now then return nil end
  if not takeover then expiry = math.max(expiry, now) end
  local members = redis.call("ZRANGE", of_queue .. "waiting", 0, most)
  return members, due, math.min(due, expiry + grace), others == 0 and expiry == math.huge and #members == 0
end

-- Return the fields of a waiting job, as picking.lua reads them; nil if this path does not suffice. A job without
-- options has these four in this order, as quick_put.lua writes them.
local function quick_record(key, queue)
  local flat, job = redis.call("HGETALL", key), nil
  prefetched[key] = flat
  if #flat == 8 and flat[1] == "klass" and flat[3] == "queue" and flat[5] == "seq" and flat[7] == "put" then
    job = { flat[2], flat[4] }
    job[13] = flat[8]
  else
    local rec = {}
    for i = 1, #flat, 2 do rec[flat[i]] = flat[i + 1] end
    if rec.state or rec.special or rec.lane or not rec.klass or not rec.put then return nil end
    job = row_of(rec)
  end
  return job[2] == queue and job
end

-- Add the first `most` members of a queue to the jobs given, with their records, as far as the reply has room; false if
-- this path does not suffice.
local function quick_take(given, queue, members, most, not_plain)
  local jobs, jids, waits, s = given.jobs, given.jids, given.waits, new_spread()
  for i = 1, math.min(#members, most) do
    local jid = string.sub(members[i], 14)
    local job = quick_record(P .. "job:" .. jid, queue)
    if not job or not_plain[job[1]] then return false end
    local bytes = given.bytes + (tonumber(job[12]) or UNSIZED_BYTES)
    if bytes > ANSWER_BYTES and #jobs > 0 then
      given.capped = true
      break
    end
    local since = job[14] or job[13]
    given.bytes = bytes
    add_time(s, now - since)
    jobs[#jobs + 1], jids[#jids + 1], waits[#waits + 1] = job, jid, math.max(now - (job[18] or since), 0)
  end
  return count_times(given.sets, queue, "wait", s)
end

-- Return "set" or "clear" if the wake-up key must change, nil if it is as it should be; and whether it ends the queue's
-- quiet.
local function quick_wakeup(queue, has_more, full, due)
  local wanted = has_more or full and ARGV[10] ~= "" and due <= now + LONGEST_WAIT
  if not wanted and full then return nil end
  local is_set = redis.call("LLEN", P .. "bell:" .. queue) > 0
  if is_set == (wanted or false) then return nil end
  if not wanted then return "clear" end
  return "set", redis.call("ZSCORE", P .. "quiet", queue)
end

-- Return times and names of the quiet queues that are known.
local function quick_notes(quiet)
  local names, noted = {}, {}
  for i, one in ipairs(quiet) do names[i] = one[1] end
  local known = #names > 0 and redis.call("ZMSCORE", P .. "queues", unpack(names))
  for i, one in ipairs(quiet) do
    if known[i] then
      noted[#noted + 1] = string.format("%.0f", math.min(one[2], NEVER))
      noted[#noted + 1] = one[1]
    end
  end
  return noted
end

local function quick_lease()
  if layout.state == "new" or has_listeners() or ARGV[8] ~= "strict" and #ARGV > 13 then return nil end
  local call, worker, number, count = redis.call, ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
  local starting, ttl, takeover = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == "1"
  local exchange, held, request_number, not_plain = P .. "worker:" .. worker, P .. "held:" .. worker, 0, {}
  if number then
    local last = call("HMGET", exchange, ARGV[10] == "2" and "since" or "number", "wish", "lacks")
    local last_number = tonumber(last[1])
    if last[3] then
      for _, klass in ipairs(lines_of(last[3])) do not_plain[klass] = true end
    end
    if number < (last_number or 0) or not last_number and number > 1 then return nil end
    request_number = tonumber(last[2]) or 0
  end
  for _, klass in ipairs(lines_of(ARGV[11])) do not_plain[klass] = true end

  local given, lines, soonest = { jobs = {}, jids = {}, waits = {}, sets = {}, bytes = 0 }, {}, first_of_quiet
  local jobs, jids, quiet = given.jobs, given.jids, {}
  for _, queue in ipairs(served) do
    local before, most = #jobs, given.capped and 0 or count - #jobs
    if most > 0 or not is_called(queue) then
      local members, due, next_at, is_quiet = quick_read_queue(queue, most, takeover)
      if not members or not quick_take(given, queue, members, most, not_plain) then return nil end
      if #jobs < count then soonest = math.min(soonest, next_at) end
      lines[#lines + 1] = { queue, before + 1, #jobs, #members > #jobs - before, due }
      if are_many and is_quiet then quiet[#quiet + 1] = { queue, due } end
    end
  end
  local n, full, token, payloads = #jobs, #jobs >= count or given.capped, 0, nil
  if n > 0 then
    token = value_of("token")
    if not token then return nil end
    payloads = payloads_of(jids, jobs, function(near)
      local keys = {}
      for i, jid in ipairs(near) do keys[i] = P .. "data:" .. jid end
      return call("MGET", unpack(keys))
    end)
    call("ZCARD", held)
  end
  for _, line in ipairs(lines) do line[6], line[7] = quick_wakeup(line[1], line[4], full, line[5]) end
  local noted = not full and quick_notes(quiet) or {}
  call("ZCARD", P .. "workers-seen")
  local lifetime = number and setting_ms("max-worker-age")

  --   From here on nothing is read.
  if n > 0 then call("INCRBY", P .. "token", n) end
  --   Redis compares a new member with all below it in a short set, so the greatest come first.
  local owners_end, held_now, ends = ":" .. worker, {}, {}
  for i = 1, n do
    local jid, key = jids[i], P .. "job:" .. jids[i]
    local token_text = string.format("%.0f", token + i)
    held_now[2 * (n - i) + 1], held_now[2 * (n - i) + 2] = token_text, jid
    if i <= starting then
      call("HSET", key, "state", "running", "owner", token_text .. owners_end, "popped", now_text, "started", "1")
    else
      call("HSET", key, "state", "running", "owner", token_text .. owners_end, "popped", now_text)
    end
  end
  for _, fields in ipairs(given.sets) do call("HSET", unpack(fields)) end
  in_chunks("ZADD", held_now, held)
  for _, line in ipairs(lines) do
    local of_queue, running, first, last = P .. "queue:" .. line[1] .. ":", {}, line[2], line[3]
    if first <= last then
      local expiry = now + (ttl or setting_ms("heartbeat", line[1]))
      local expiry_text = string.format("%.0f", expiry)
      for i = first, last do
        running[#running + 1] = expiry_text
        running[#running + 1] = jids[i]
      end
      ends[#ends + 1] = line[1]
      ends[#ends + 1] = expiry
      call("ZREMRANGEBYRANK", of_queue .. "waiting", 0, last - first)
      in_chunks("ZADD", running, of_queue .. "running")
    end
    if line[7] then call("ZREM", P .. "quiet", line[1]) end
    if line[6] == "set" then call("RPUSH", P .. "bell:" .. line[1], "1") end
    if line[6] == "clear" then call("UNLINK", P .. "bell:" .. line[1]) end
  end
  in_chunks("ZADD", noted, P .. "quiet")
  call("ZADD", P .. "workers-seen", now_text, worker)
  if number then call("PEXPIRE", exchange, lifetime) end
  if full or soonest == math.huge then soonest = given.capped and now or 0 end
  local answer = {}
  for i = 1, n do add_given(answer, jids[i], jobs[i], payloads[i], given.waits[i], false, false, false) end
  return { now, soonest, n > 0 and token + 1 or 0, {}, request_number, ends, answer }
end

local granted = quick_lease()
if granted then return granted end
