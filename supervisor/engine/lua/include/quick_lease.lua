-- quick_lease.lua: a lease of queues in which jobs only wait: without lanes, limits with room, entries or recurrences,
-- with nothing in front, due or expired, and of dense records.
--- @include quick
--- @include quick_options
--- @include spread
--- @include bins
--- @include leased
--- @include served
--- @include prefetched
local function quick_lease()
  local token = tonumber(string.match(layout.token or "", "^%d+$")) -- missing or foreign: the rest tells
  if not is_quick or ARGV[8] ~= "strict" and #ARGV > 13 then return nil end
  if not token or layout.first_token or token >= (layout.last_token or 2 ^ 51) - 1000 then return nil end
  local call, worker, number, count = redis.call, ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
  local starting, ttl, takeover = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == "1"
  local has_options, exchange, request_number = layout.has_options, P .. "worker:" .. worker, 0
  local others_klasses = ARGV[11] -- whose jobs the rest gives, if at all
  if number then
    local last = call("HMGET", exchange, ARGV[10] == "2" and "since" or "number", "wish", "lacks")
    local last_number = tonumber(last[1])
    if number < (last_number or 0) or not last_number and number > 1 then return nil end
    request_number = tonumber(last[2]) or 0
    if last[3] then others_klasses = others_klasses .. "\n" .. last[3] end
  end
  local stats_days, histogram_days, worker_age = 30, 31, 86400
  if has_options then
    stats_days, histogram_days, worker_age = quick_options(nil, {
      "stats-history", 30, "histogram-history", 31, "max-worker-age", 86400,
    })
  end

  -- The jobs that wait in each queue, as many as are wanted.
  local jids, lines, soonest, n, quiet = {}, {}, first_of_quiet, 0, nil
  local listeners = redis.pcall("PUBSUB", "NUMSUB", P .. "events")[2] or 0
  for _, queue in ipairs(served) do
    if n < count or not (are_many and call("LLEN", P .. "bell:" .. queue) > 0) then
      local of_queue, expiry, due, first = P .. "queue:" .. queue .. ":", math.huge, math.huge, n + 1
      local waiting, running, scheduled = of_queue .. "waiting", of_queue .. "running", of_queue .. "scheduled"
      local paused, most_running, grace, heartbeat = 0, 0, 5, 30
      if has_options then
        paused, most_running, grace, heartbeat = quick_options(queue, {
          "paused", 0, "max-concurrency", 0, "grace", 5, "heartbeat", 30,
        })
      end
      local others = call("EXISTS", running, scheduled, of_queue .. "front", of_queue .. "lanes", of_queue .. "limits",
        of_queue .. "recurring", of_queue .. "klasses", P .. "in:" .. queue)
      if others > 0 then
        expiry = tonumber(call("ZRANGE", running, 0, 0, "WITHSCORES")[2]) or expiry
        due = tonumber(call("ZRANGE", scheduled, 0, 0, "WITHSCORES")[2]) or due
        others = others - (expiry < math.huge and 1 or 0) - (due < math.huge and 1 or 0)
        --       Jobs parked under limits that only a free slot can help do not matter.
        local held = others == 1 and tonumber(call("ZRANGE", of_queue .. "limits", 0, 0, "WITHSCORES")[2])
        if others > 0 and held ~= 2 ^ 53 then return nil end
      end
      if paused > 0 or most_running > 0 then return nil end
      if due <= now or takeover and expiry + math.floor(grace * 1000) <= now then return nil end
      if expiry <= now and listeners > 0 then return nil end
      if not takeover then expiry = math.max(expiry, now) end
      local members = call("ZRANGE", waiting, 0, count - n)
      for m = 1, math.min(#members, count - n) do
        n = n + 1
        jids[n] = string.sub(members[m], 14)
      end
      if n < count then soonest = math.min(soonest, due, expiry + math.floor(grace * 1000)) end
      lines[#lines + 1] = {
        queue = queue, waiting = waiting, running = running, first = first, last = n,
        has_more = #members > n - first + 1, due = due, expiry = now + (ttl or math.floor(heartbeat * 1000)),
      }
      if are_many and others == 0 and expiry == math.huge and #members == 0 then
        quiet = quiet or {}
        quiet[#quiet + 1] = { queue, due }
      end
    end
  end

  -- The records of these jobs, as many as the reply has room for, and what lies beside them.
  local full, capped, sets, records, beside, payloads, keys = n >= count, false, {}, {}, nil, nil, {}
  if n > 0 then
    local jobs, bytes, sizes, unfit = P .. "job:", 0, nil, nil
    for i = 1, n do keys[i] = jobs .. jids[i] end
    records = call("MGET", unpack(keys))
    for i = 1, n do prefetched[jids[i]] = records[i] end
    if others_klasses ~= "" then
      unfit = {}
      for klass in string.gmatch(others_klasses, "[^\n]+") do unfit[klass] = true end
    end
    for _, line in ipairs(lines) do
      local named, known, waits = "\n" .. line.queue .. "\n", {}, {}
      for i = line.first, line.last do
        local record = records[i]
        if not record or string.find(record, named, 31, true) ~= 31 or string.byte(record) ~= 49 then return nil end
        if unfit and unfit[string.match(record, "\n[^\n]*\n([^\n]*)\n")] then return nil end
        local size = string.byte(record, 2) < 97 and tonumber(string.match(record, "%d+$"))
        bytes = bytes + (size or UNSIZED_BYTES)
        if bytes > ANSWER_BYTES and i > 1 then
          capped = true
          break
        end
        if size then
          beside, sizes = beside or {}, sizes or {}
          beside[#beside + 1], sizes[#sizes + 1] = i, size
        end
        local put = string.sub(record, 18, 30)
        local ms = known[put]
        if not ms then
          ms = math.max(now - tonumber(put), 0)
          known[put] = ms
        end
        waits[ms], line.taken = (waits[ms] or 0) + 1, i
      end
      if line.taken and stats_days > 0 then
        line.day, line.waits = math.floor(now / 86400000) * 86400 .. ":" .. line.queue, waits
        local fields, is_new = summed(line.day, "wait", waits)
        if is_new then return nil end
        sets[#sets + 1] = fields
      end
      if capped then break end
    end
    if capped then
      full, n = true, 0
      for _, line in ipairs(lines) do
        line.has_more = line.has_more or line.last > (line.taken or line.first - 1)
        line.last = line.taken or line.first - 1
        n = math.max(n, line.taken or 0)
      end
      for i = #jids, n + 1, -1 do jids[i], records[i] = nil, nil end
    end
    if beside then
      payloads = payloads_of(sizes, function(near)
        local wanted = {}
        for i, at in ipairs(near) do wanted[i] = P .. "data:" .. jids[beside[at]] end
        return call("MGET", unpack(wanted))
      end)
    end
    call("ZCARD", P .. "held:" .. worker)
  end

  -- The wake-up keys that must change, and the queues that are quiet from now on.
  for _, line in ipairs(lines) do
    local wanted = line.has_more or full and ARGV[10] ~= "" and line.due <= now + LONGEST_WAIT
    if wanted or not full then
      line.bell = P .. "bell:" .. line.queue
      local is_set = call("LLEN", line.bell) > 0
      line.wakes, line.clears = wanted and not is_set, is_set and not wanted
      line.was_quiet = line.wakes and call("ZSCORE", P .. "quiet", line.queue)
    end
  end
  local noted = nil
  if quiet and not full then
    local names = {}
    for i, one in ipairs(quiet) do names[i] = one[1] end
    noted = {}
    for i, is_known in ipairs(call("ZMSCORE", P .. "queues", unpack(names))) do
      if is_known then
        noted[#noted + 1] = string.format("%.0f", math.min(quiet[i][2], NEVER))
        noted[#noted + 1] = names[i]
      end
    end
  end

  -- From here on nothing is read. The first call may meet a foreign type; those of the other keys are known.
  local held, values, ends, behind = {}, {}, {}, " " .. now_in_record .. " " .. worker .. "\n"
  call("ZADD", P .. "workers-seen", now_text, worker)
  if n > 0 then
    for i = 1, n do
      local text = string.format("%d", token + i)
      --       In a short set a new member is compared with those before it, so the last come first.
      held[2 * (n - i) + 1], held[2 * (n - i) + 2] = text, jids[i]
      values[2 * i - 1], values[2 * i] = keys[i], (i <= starting and "S" or "L") .. text .. behind .. records[i]
    end
    in_chunks("ZADD", held, P .. "held:" .. worker)
    values[2 * n + 1], values[2 * n + 2] = P .. "token", string.format("%d", token + n)
    in_chunks("MSET", values)
  end
  for i = 1, #sets do call("HSET", unpack(sets[i])) end
  for _, line in ipairs(lines) do
    local first, last, running, expiry = line.first, line.last, {}, string.format("%.0f", line.expiry)
    if first <= last then
      for i = first, last do running[2 * (i - first) + 1], running[2 * (i - first) + 2] = expiry, jids[i] end
      ends[#ends + 1] = line.queue
      ends[#ends + 1] = line.expiry
      call("ZREMRANGEBYRANK", line.waiting, 0, last - first)
      in_chunks("ZADD", running, line.running)
    end
    if line.was_quiet then call("ZREM", P .. "quiet", line.queue) end
    if line.wakes then call("RPUSH", line.bell, "1") end
    if line.clears then call("UNLINK", line.bell) end
  end
  if noted then in_chunks("ZADD", noted, P .. "quiet") end
  if number then call("PEXPIRE", exchange, math.floor(worker_age * 1000)) end
  for _, line in ipairs(histogram_days > 0 and lines or {}) do
    if line.waits then count_times(redis.pcall, line.day, line.queue, histogram_days, "wait", line.waits) end
  end
  if listeners > 0 then
    quick_publish("lease.granted", jids, function(i)
      local queue, klass = string.match(records[i], "\n([^\n]*)\n([^\n]*)\n")
      return queue, klass, { worker = worker, token = token + i }
    end)
  end
  if full or soonest == math.huge then soonest = capped and now or 0 end
  for i, at in ipairs(beside or {}) do records[at] = { records[at], payloads[i] } end
  return { now, soonest, n > 0 and token + 1 or 0, {}, request_number, ends, jids, records }
end

local granted = quick_lease()
if granted then return granted end
--- @rest
