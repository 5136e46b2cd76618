-- quick_settle.lua: a batch of completions of jobs with dense records, of queues without a limit. The records are not
-- read: the score of a lease says that its record is dense.
--- @include quick
--- @include quick_options
--- @include spread
--- @include bins
local function quick_settle()
  local n, at = tonumber(ARGV[4]), nil
  if n == 0 or not is_quick then return nil end
  local call, worker, number, last_jid = redis.call, ARGV[2], tonumber(ARGV[3]), 4 + n
  local has_options, exchange, held = layout.has_options, P .. "worker:" .. worker, P .. "held:" .. worker
  local stored = number and call("HMGET", exchange, "number", "settled", "answers")
  if stored and (tonumber(stored[2]) == number or number <= (tonumber(stored[1]) or -1)) then return nil end
  local age, most, stats_days, histogram_days, worker_age = 604800, 50000, 30, 31, 86400
  if has_options then
    age, most, stats_days, histogram_days, worker_age = quick_options(nil, {
      "jobs-history", 604800, "jobs-history-count", 50000, "stats-history", 30, "histogram-history", 31,
      "max-worker-age", 86400,
    })
  end
  local keeps = age > 0 and most > 0

  -- The jobs by their queues; each must be held with this token, and be there once.
  local lines, sets, results, seen, index = {}, {}, nil, {}, 0
  at = 6 + 2 * n
  for _ = 1, tonumber(ARGV[at - 1]) do
    local queue, ms, size, line = ARGV[at], math.max(now - ARGV[at + 1], 0), tonumber(ARGV[at + 2]), lines[#lines]
    if not line or line.queue ~= queue then
      if seen[queue] or has_options and quick_options(queue, { "max-concurrency", 0 }) > 0 then return nil end
      line = { queue = queue, running = P .. "queue:" .. queue .. ":running", first = index + 1, runs = {} }
      lines[#lines + 1], seen[queue] = line, true
    end
    index, at = index + size, at + 3
    line.last, line.runs[ms] = index, (line.runs[ms] or 0) + size
  end
  if at + 2 * ARGV[at] ~= #ARGV or index ~= n then return nil end -- the call has other outcomes, too
  if ARGV[at] ~= "0" then
    results = {}
    for i = at + 1, #ARGV, 2 do results[tonumber(ARGV[i])] = ARGV[i + 1] end
  end
  seen = {}
  local scores = call("ZMSCORE", held, unpack(ARGV, 5, last_jid))
  for i = 1, n do
    local jid = ARGV[4 + i]
    if scores[i] ~= ARGV[last_jid + i] or seen[jid] then return nil end
    seen[jid] = true
  end

  for i, line in ipairs(lines) do
    if i > 1 then call("ZCARD", line.running) end
    if stats_days > 0 then
      line.day = math.floor(now / 86400000) * 86400 .. ":" .. line.queue
      local fields, is_new = summed(line.day, "run", line.runs)
      if is_new then return nil end
      sets[i] = fields
    end
  end

  -- Retention drops older jobs for these completions. `gone` has the keys that go.
  local complete, gone, n_old = P .. "complete", {}, 0
  if keeps then
    local aged = call("ZCOUNT", complete, "-inf", now - age * 1000 + 0.5)
    n_old = math.min(math.max(aged, call("ZCARD", complete) + n - most), 2 * n + 16, 1000)
    local old, more = n_old > 0 and call("ZRANGE", complete, 0, n_old - 1, "WITHSCORES") or {}, {}
    for i = 1, #old, 2 do
      local jid = old[i]
      if seen[jid] then return nil end
      gone[#gone + 1] = P .. "job:" .. jid
      gone[#gone + 1] = P .. "data:" .. jid
      if old[i + 1] % 1 ~= 0 then
        for _, others in ipairs({ "tags:", "readers:", "dependents:" }) do more[#more + 1] = P .. others .. jid end
        for _, rest in ipairs({ "failure:", "result:", "history:", "progress:", "saved:", "replay:", "parents:" }) do
          gone[#gone + 1] = P .. rest .. jid
        end
      end
    end
    if count_existing(more) > 0 then return nil end
  else
    for i = 5, last_jid do
      gone[#gone + 1] = P .. "job:" .. ARGV[i]
      gone[#gone + 1] = P .. "data:" .. ARGV[i]
    end
  end
  local records, keys = nil, {}
  if (redis.pcall("PUBSUB", "NUMSUB", P .. "events")[2] or 0) > 0 then
    for i = 1, n do keys[i] = P .. "job:" .. ARGV[4 + i] end
    records = call("MGET", unpack(keys))
    for i = 1, n do
      if not records[i] then return nil end
    end
  end

  -- From here on nothing is read. The first call may meet a foreign type; those of the other keys are known.
  for _, line in ipairs(lines) do call("ZREM", line.running, unpack(ARGV, 4 + line.first, 4 + line.last)) end
  call("ZREM", held, unpack(ARGV, 5, last_jid))
  in_chunks("UNLINK", gone)
  for i = 1, #sets do call("HSET", unpack(sets[i])) end
  if keeps then
    local scored, with_more, texts = {}, results and string.format("%.1f", now + 0.5), {}
    for i = 1, n do
      local result = results and results[i]
      scored[2 * i - 1], scored[2 * i] = result and with_more or now_text, ARGV[4 + i]
      if result then texts[#texts + 1], texts[#texts + 2] = P .. "result:" .. ARGV[4 + i], result end
    end
    in_chunks("MSET", texts)
    if n_old > 0 then call("ZREMRANGEBYRANK", complete, 0, n_old - 1) end
    in_chunks("ZADD", scored, complete)
  end
  local reply = string.rep("1,", n - 1) .. "1"
  if stored and (stored[1] or number <= 1) then -- else the worker was deregistered
    call("HSET", exchange, "number", number, "settled", number, "answers", reply)
    call("PEXPIRE", exchange, math.floor(worker_age * 1000))
  end
  for _, line in ipairs(histogram_days > 0 and lines or {}) do
    if line.day then count_times(redis.pcall, line.day, line.queue, histogram_days, "run", line.runs) end
  end
  if records then
    quick_publish("job.completed", { unpack(ARGV, 5, last_jid) }, function(i)
      local queue, klass = string.match(records[i], "\n1[^\n]*\n([^\n]*)\n([^\n]*)\n")
      return queue, klass, { worker = worker }
    end)
  end
  return reply
end

local settled = quick_settle()
if settled then return settled end
--- @rest
