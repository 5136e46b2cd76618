-- quick_lease.lua: a lease of queues in which jobs only wait: without lanes, limits with room, entries or recurrences,
-- with nothing in front, due or expired, and of dense records.
--- @include quick
--- @include quick_times
--- @include leased
--- @include served
--- @include prefetched
-- Return whether jobs are parked under limits that only a free slot can help: nothing can be done for them now.
local function quick_is_held(checks) return tonumber(redis.call("ZRANGE", checks, 0, 0, "WITHSCORES")[2]) == 2 ^ 53 end

-- Return what waits in a queue, one more than `most`; when the next job is due, and when there will be more; when the
-- first lease ends; and whether the queue is quiet. nil if this path does not suffice.
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
  local is_quiet = others == 0 and expiry == math.huge and #members == 0
  return members, due, math.min(due, expiry + grace), expiry, is_quiet
end

local function quick_klass(record) return string.match(record, "\n[^\n]*\n([^\n]*)\n") end

-- Return the records of the jobs to give, the indexes and sizes of the payloads that lie beside, the keys, and how many
-- jobs the reply has room for; nothing if one is not dense, lies in another queue, or is of a klass of `not_plain`.
local function quick_records(jids, lines, not_plain)
  local keys, is_any_klass, bytes, beside, sizes, of_job = {}, next(not_plain) == nil, 0, {}, {}, P .. "job:"
  for i = 1, #jids do keys[i] = of_job .. jids[i] end
  local records = redis.call("MGET", unpack(keys))
  for i = 1, #jids do prefetched[jids[i]] = records[i] end
  for _, line in ipairs(lines) do
    local named = "\n" .. line.queue .. "\n"
    for i = line.first, line.last do
      local record = records[i]
      if not record or string.find(record, named, 31, true) ~= 31 or string.byte(record) ~= 49 then return nil end
      if not is_any_klass and not_plain[quick_klass(record)] then return nil end
      local size = string.byte(record, 2) < 97 and tonumber(string.match(record, "%d+$"))
      bytes = bytes + (size or UNSIZED_BYTES)
      if bytes > ANSWER_BYTES and i > 1 then return records, beside, sizes, keys, i - 1 end
      if size then beside[#beside + 1], sizes[#sizes + 1] = i, size end
    end
  end
  return records, beside, sizes, keys, #jids
end

-- Return the payloads that lie beside records, or their sizes.
local function quick_payloads(jids, beside, sizes)
  return payloads_of(sizes, function(near)
    local keys = {}
    for i, at in ipairs(near) do keys[i] = P .. "data:" .. jids[beside[at]] end
    return redis.call("MGET", unpack(keys))
  end)
end

-- The reply has room for the first `n` jobs only.
local function quick_cut(n, jids, records, lines)
  for i = #jids, n + 1, -1 do jids[i], records[i] = nil, nil end
  for _, line in ipairs(lines) do
    if line.last > n then line.last, line.has_more = math.max(n, line.first - 1), true end
  end
end

-- Count how long the jobs of a line have waited.
local function quick_waits(sets, line, records)
  local known, spread = {}, {}
  for i = line.first, line.last do
    local put = string.sub(records[i], 18, 30)
    local ms = known[put]
    if not ms then
      ms = math.max(now - tonumber(put), 0)
      known[put] = ms
    end
    spread[ms] = (spread[ms] or 0) + 1
  end
  return count_times(sets, line.queue, "wait", spread)
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
  if ARGV[8] ~= "strict" and #ARGV > 13 or not is_quick then return nil end
  local call, worker, number, count = redis.call, ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
  local starting, ttl, takeover = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == "1"
  local exchange, request_number, not_plain = P .. "worker:" .. worker, 0, {}
  if number then
    local last = call("HMGET", exchange, ARGV[10] == "2" and "since" or "number", "wish", "lacks")
    local last_number = tonumber(last[1])
    if last[3] then
      for _, klass in ipairs(lines_of(last[3])) do not_plain[klass] = true end
    end
    if number < (last_number or 0) or not last_number and number > 1 then return nil end
    request_number = tonumber(last[2]) or 0
  end
  for klass in string.gmatch(ARGV[11], "[^\n]+") do not_plain[klass] = true end

  local jids, lines, soonest, n, quiet = {}, {}, first_of_quiet, 0, {}
  for _, queue in ipairs(served) do
    if n < count or not is_called(queue) then
      local first = n + 1
      local members, due, next_at, expiry, is_quiet = quick_read_queue(queue, count - n, takeover)
      if not members or expiry <= now and has_listeners() then return nil end
      for m = 1, math.min(#members, count - n) do
        n = n + 1
        jids[n] = string.sub(members[m], 14)
      end
      if n < count then soonest = math.min(soonest, next_at) end
      lines[#lines + 1] = { queue = queue, first = first, last = n, has_more = #members > n - first + 1, due = due }
      if are_many and is_quiet then quiet[#quiet + 1] = { queue, due } end
    end
  end
  local full, capped, token, sets, records, beside, payloads, keys = n >= count, false, 0, {}, nil, nil, nil, nil
  if n > 0 then
    local sizes, fitting
    token = value_of("token")
    if not token then return nil end
    records, beside, sizes, keys, fitting = quick_records(jids, lines, not_plain)
    if not records then return nil end
    if fitting < n then
      n, full, capped = fitting, true, true
      quick_cut(n, jids, records, lines)
    end
    payloads = quick_payloads(jids, beside, sizes)
    call("ZCARD", P .. "workers-seen")
  end
  for _, line in ipairs(lines) do
    if line.first <= line.last and not quick_waits(sets, line, records) then return nil end
    line.wakeup, line.was_quiet = quick_wakeup(line.queue, line.has_more, full, line.due)
  end
  local noted = not full and quick_notes(quiet) or {}
  local lifetime, has_heard = number and setting_ms("max-worker-age"), n > 0 and has_listeners()
  for _, line in ipairs(lines) do line.expiry = now + (ttl or setting_ms("heartbeat", line.queue)) end

  -- From here on nothing is read. The first call may meet a foreign type; those of the other keys are known.
  local held, values, ends, behind = {}, {}, {}, " " .. now_in_record .. " " .. worker .. "\n"
  for i = 1, n do
    local jid, text = jids[i], string.format("%d", token + i)
    --     Redis compares a new member with all below it in a short set, so the greatest come first.
    held[2 * (n - i) + 1], held[2 * (n - i) + 2] = text, jid
    values[2 * i - 1] = keys[i]
    values[2 * i] = (i <= starting and "S" or "L") .. text .. behind .. records[i]
  end
  in_chunks("ZADD", held, P .. "held:" .. worker)
  if n > 0 then
    values[2 * n + 1], values[2 * n + 2] = P .. "token", string.format("%d", token + n)
    in_chunks("MSET", values)
  end
  for _, fields in ipairs(sets) do call("HSET", unpack(fields)) end
  for _, line in ipairs(lines) do
    local of_queue, running, first, last = P .. "queue:" .. line.queue .. ":", {}, line.first, line.last
    if first <= last then
      local expiry_text = string.format("%.0f", line.expiry)
      for i = first, last do
        running[#running + 1] = expiry_text
        running[#running + 1] = jids[i]
      end
      ends[#ends + 1] = line.queue
      ends[#ends + 1] = line.expiry
      call("ZREMRANGEBYRANK", of_queue .. "waiting", 0, last - first)
      in_chunks("ZADD", running, of_queue .. "running")
    end
    if line.was_quiet then call("ZREM", P .. "quiet", line.queue) end
    if line.wakeup == "set" then call("RPUSH", P .. "bell:" .. line.queue, "1") end
    if line.wakeup == "clear" then call("UNLINK", P .. "bell:" .. line.queue) end
  end
  in_chunks("ZADD", noted, P .. "quiet")
  call("ZADD", P .. "workers-seen", now_text, worker)
  if number then call("PEXPIRE", exchange, lifetime) end
  for _, line in ipairs(has_heard and lines or {}) do
    for i = line.first, line.last do
      local klass = quick_klass(records[i])
      quick_event("lease.granted", jids[i], line.queue, klass, { worker = worker, token = token + i })
    end
  end
  if full or soonest == math.huge then soonest = capped and now or 0 end
  for i, at in ipairs(beside or {}) do records[at] = { records[at], payloads[i] } end
  return { now, soonest, n > 0 and token + 1 or 0, {}, request_number, ends, jids, records or {} }
end

local granted = quick_lease()
if granted then return granted end
--- @rest
