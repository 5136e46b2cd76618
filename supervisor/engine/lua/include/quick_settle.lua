-- quick_settle.lua: a batch of completions of jobs with only record and data, of queues without a limit.
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

local function quick_settle()
  if has_listeners() then return nil end
  local call, worker, number, keeps = redis.call, ARGV[2], tonumber(ARGV[3]), keeps_completed()
  local exchange, owners_end = P .. "worker:" .. worker, ":" .. worker
  local stored = number and call("HMGET", exchange, "number", "settled", "answers")
  if stored and (tonumber(stored[2]) == number or number <= (tonumber(stored[1]) or -1)) then return nil end

  local job_keys, jids, results, stored_results, by_queue, spreads, seen = {}, {}, {}, {}, {}, {}, {}
  local at, n, argc = 4, 0, #ARGV
  while at <= argc do
    local jid = ARGV[at + 1]
    if ARGV[at] ~= "complete" or seen[jid] then return nil end
    local key = P .. "job:" .. jid
    local job = call("HMGET", key, "owner", "state", "queue", "popped", "special")
    local queue = job[3]
    if job[1] ~= ARGV[at + 2] .. owners_end or job[2] ~= "running" or job[5] or not queue then return nil end
    n = n + 1
    job_keys[n], jids[n], results[n], seen[jid] = key, jid, ARGV[at + 3], true
    if results[n] ~= "" then
      stored_results[#stored_results + 1] = P .. "result:" .. jid
      stored_results[#stored_results + 1] = results[n]
    end
    local line = by_queue[queue]
    if not line then
      if setting("max-concurrency", queue) > 0 then return nil end
      line = {}
      by_queue[queue], spreads[queue] = line, new_spread()
    end
    line[#line + 1] = jid
    add_time(spreads[queue], now - (job[4] or now))
    at = at + 4
  end

  local held, sets, gone, old = P .. "held:" .. worker, {}, {}, nil
  if n == 0 then return nil end
  for queue, s in pairs(spreads) do
    if not count_times(sets, queue, "run", s) then return nil end
    call("ZCARD", P .. "queue:" .. queue .. ":running")
  end
  call("ZCARD", held)
  if keeps then
    old, gone = quick_surplus(n, math.min(2 * n + 16, 1000), seen)
    if not old then return nil end
  end
  local lifetime = number and setting_ms("max-worker-age")
  -- From here on nothing is read.
  for _, jid in ipairs(keeps and old or jids) do
    gone[#gone + 1] = P .. "job:" .. jid
    gone[#gone + 1] = P .. "data:" .. jid
  end
  in_chunks("DEL", gone)
  if keeps then
    in_chunks("MSET", stored_results)
    for i = 1, n do call("HSET", job_keys[i], "state", "complete") end
  end
  for i = 1, #sets do call("HSET", unpack(sets[i])) end
  for queue, line in pairs(by_queue) do in_chunks("ZREM", line, P .. "queue:" .. queue .. ":running") end
  in_chunks("ZREM", jids, held)
  if keeps then
    local scored, with_more = {}, string.format("%.1f", now + 0.5)
    for i = 1, n do scored[2 * i - 1], scored[2 * i] = results[i] == "" and now_text or with_more, jids[i] end
    if #old > 0 then call("ZREMRANGEBYRANK", P .. "complete", 0, #old - 1) end
    in_chunks("ZADD", scored, P .. "complete")
  end
  local reply = string.rep("1,", n - 1) .. "1"
  if stored and (stored[1] or number <= 1) then -- else the worker was deregistered
    call("HSET", exchange, "number", number, "settled", number, "answers", reply)
    call("PEXPIRE", exchange, lifetime)
  end
  return reply
end

local settled = quick_settle()
if settled then return settled end
