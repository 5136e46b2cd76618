-- quick_settle.lua: a batch of completions of jobs with dense records, of queues without a limit. The records are not
-- read: the score of a lease says that its record is dense.
--- @include quick
--- @include quick_times
local RESTS = { "failure:", "result:", "history:", "progress:", "saved:" }

-- Return the jobs that retention drops for so many completed ones, and the other keys of those with more than record
-- and data; nil if one has tags.
local function quick_surplus(added, most, running)
  local age, count, key = setting("jobs-history"), setting("jobs-history-count"), P .. "complete"
  local aged = redis.call("ZCOUNT", key, "-inf", now - age * 1000 + 0.5)
  local n = math.min(math.max(aged, redis.call("ZCARD", key) + added - count), most)
  if n <= 0 then return {}, {} end
  local old, jids, rests, tags = redis.call("ZRANGE", key, 0, n - 1, "WITHSCORES"), {}, {}, {}
  for i = 1, #old, 2 do
    local jid = old[i]
    if running[jid] then return nil end
    jids[#jids + 1] = jid
    if old[i + 1] % 1 ~= 0 then
      tags[#tags + 1] = P .. "tags:" .. jid
      for _, rest in ipairs(RESTS) do rests[#rests + 1] = P .. rest .. jid end
    end
  end
  if #tags > 0 and redis.call("EXISTS", unpack(tags)) > 0 then return nil end
  return jids, rests
end

-- Read what the call says of queues and results; nil if this path does not suffice.
local function quick_groups(n, at)
  local lines, groups, results, spreads, index = {}, tonumber(ARGV[at]), {}, {}, 0
  at = at + 1
  for _ = 1, groups do
    local queue, popped, size = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    local line, ms = lines[#lines], math.max(now - popped, 0)
    if not line or line.queue ~= queue then
      if setting("max-concurrency", queue) > 0 or spreads[queue] then return nil end
      line = { queue = queue, first = index + 1 }
      lines[#lines + 1], spreads[queue] = line, {}
    end
    index, at = index + size, at + 3
    line.last, spreads[queue][ms] = index, (spreads[queue][ms] or 0) + size
  end
  for i = at + 1, at + 2 * ARGV[at], 2 do results[tonumber(ARGV[i])] = ARGV[i + 1] end
  if index ~= n or at + 2 * ARGV[at] ~= #ARGV then return nil end
  return lines, spreads, results
end

local function quick_settle()
  local n = tonumber(ARGV[4])
  if n == 0 or not is_quick then return nil end
  local call, worker, number, keeps = redis.call, ARGV[2], tonumber(ARGV[3]), keeps_completed()
  local exchange, held = P .. "worker:" .. worker, P .. "held:" .. worker
  local stored = number and call("HMGET", exchange, "number", "settled", "answers")
  if stored and (tonumber(stored[2]) == number or number <= (tonumber(stored[1]) or -1)) then return nil end
  local lines, spreads, results = quick_groups(n, 5 + 2 * n)
  if not lines then return nil end
  local scores, seen = call("ZMSCORE", held, unpack(ARGV, 5, 4 + n)), {}
  for i = 1, n do
    local jid = ARGV[4 + i]
    if scores[i] ~= ARGV[4 + n + i] or seen[jid] then return nil end
    seen[jid] = true
  end
  local sets, gone, old, stored_results, klasses = {}, {}, nil, {}, nil
  for i, line in ipairs(lines) do
    if not count_times(sets, line.queue, "run", spreads[line.queue]) then return nil end
    if i > 1 then call("ZCARD", P .. "queue:" .. line.queue .. ":running") end
  end
  if keeps then
    old, gone = quick_surplus(n, math.min(2 * n + 16, 1000), seen)
    if not old then return nil end
    for i, result in pairs(results) do
      stored_results[#stored_results + 1] = P .. "result:" .. ARGV[4 + i]
      stored_results[#stored_results + 1] = result
    end
  end
  local lifetime = number and setting_ms("max-worker-age")
  if has_listeners() then
    local keys = {}
    for i = 1, n do keys[i] = P .. "job:" .. ARGV[4 + i] end
    klasses = call("MGET", unpack(keys))
    for i = 1, n do
      klasses[i] = string.match(klasses[i] or "", "\n1[^\n]*\n[^\n]*\n([^\n]*)\n")
      if not klasses[i] then return nil end
    end
  end

  -- From here on nothing is read. The first call may meet a foreign type; those of the other keys are known.
  for _, line in ipairs(lines) do
    call("ZREM", P .. "queue:" .. line.queue .. ":running", unpack(ARGV, 4 + line.first, 4 + line.last))
  end
  call("ZREM", held, unpack(ARGV, 5, 4 + n))
  for i = 1, keeps and #old or n do
    local jid = keeps and old[i] or ARGV[4 + i]
    gone[#gone + 1] = P .. "job:" .. jid
    gone[#gone + 1] = P .. "data:" .. jid
  end
  in_chunks("DEL", gone)
  for i = 1, #sets do call("HSET", unpack(sets[i])) end
  if keeps then
    local scored, with_more = {}, string.format("%.1f", now + 0.5)
    for i = 1, n do scored[2 * i - 1], scored[2 * i] = results[i] and with_more or now_text, ARGV[4 + i] end
    in_chunks("MSET", stored_results)
    if #old > 0 then call("ZREMRANGEBYRANK", P .. "complete", 0, #old - 1) end
    in_chunks("ZADD", scored, P .. "complete")
  end
  local reply = string.rep("1,", n - 1) .. "1"
  if stored and (stored[1] or number <= 1) then -- else the worker was deregistered
    call("HSET", exchange, "number", number, "settled", number, "answers", reply)
    call("PEXPIRE", exchange, lifetime)
  end
  for _, line in ipairs(klasses and lines or {}) do
    for i = line.first, line.last do
      quick_event("job.completed", ARGV[4 + i], line.queue, klasses[i], { worker = worker })
    end
  end
  return reply
end

local settled = quick_settle()
if settled then return settled end
--- @rest
