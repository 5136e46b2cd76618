-- quick_put.lua: new jobs that only wait, with no options but numbers and a trace.
--- @include quick
local function quick_put()
  local seq = tonumber(string.match(layout.seq or "", "^%d+$")) -- missing or foreign: the rest tells
  if not is_quick or not seq or seq >= 2 ^ 51 or #ARGV < 4 then return nil end
  local call, format, n, jobs = redis.call, string.format, 0, P .. "job:"
  local lines, seen, keys, values, beside, answers = {}, {}, {}, {}, nil, {}
  local front, front_beside, back, line, priority -- of the records that a put's first argument describes
  for at = 2, #ARGV, 3 do
    local head, jid, data = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    if head ~= "" then
      local queue, klass, kind, options = string.match(head, "^%l+\n([^\n]+)\n([^\n]+)\n([jb])\n([^\n]*)$")
      if not queue then return nil end
      if string.byte(options) == 112 then
        options = string.gsub(options, "^p0 ?", "") -- the default
        priority = string.match(options, "^p(%S+)") or "0"
      else
        priority = "0"
      end
      line = lines[queue] or {}
      lines[queue], front, front_beside = line, "1" .. kind .. " ", "1" .. string.upper(kind) .. " "
      back = " " .. now_in_record .. "\n" .. queue .. "\n" .. klass .. "\n" .. options .. "\n"
    end
    if seen[jid] then return nil end
    n = n + 1
    local number, key, size, last = format("%013x", seq + n), jobs .. jid, #data, #line
    seen[jid], keys[n], values[2 * n - 1], answers[n] = true, key, key, 1
    if size <= INLINE then
      values[2 * n] = front .. number .. back .. data
    else
      values[2 * n], beside = front_beside .. number .. back .. size, beside or {}
      beside[#beside + 1] = P .. "data:" .. jid
      beside[#beside + 1] = data
    end
    line[last + 1], line[last + 2] = number .. jid, priority
  end

  -- None of the jobs may be known. Most puts of one job find nothing of all these.
  keys[n + 1], keys[n + 2], keys[n + 3] = P .. "tracked-jobs", P .. "quiet", P .. "idle"
  for queue in pairs(lines) do
    keys[#keys + 1] = P .. "queue:" .. queue .. ":waiting"
    keys[#keys + 1] = P .. "bell:" .. queue
  end
  local exist, others, wakeups, quiet = count_existing(keys), 0, {}, nil
  local is_any_quiet = exist > 0 and call("ZCARD", P .. "quiet") > 0
  local is_any_idle = exist > 0 and call("ZCARD", P .. "idle") > 0
  if is_any_quiet then others = others + 1 end
  if is_any_idle then others = others + 1 end
  for queue in pairs(lines) do
    local bell = P .. "bell:" .. queue
    local is_empty = exist == 0 or call("ZCARD", P .. "queue:" .. queue .. ":waiting") == 0
    if not is_empty then others = others + 1 end
    if exist > 0 and call("LLEN", bell) > 0 then
      others = others + 1
    else
      wakeups[#wakeups + 1] = bell
      if is_any_quiet and call("ZSCORE", P .. "quiet", queue) then
        quiet = quiet or {}
        quiet[#quiet + 1] = queue
      end
    end
    if not call("ZSCORE", P .. "queues", queue) then return nil end
    if is_empty and is_any_idle and call("ZSCORE", P .. "idle", queue) then return nil end
  end
  if exist > others then return nil end -- a job is known, or some jobs are tracked
  local has_listeners = (redis.pcall("PUBSUB", "NUMSUB", P .. "events")[2] or 0) > 0

  -- From here on nothing is read.
  values[2 * n + 1], values[2 * n + 2] = P .. "seq", format("%d", seq + n)
  in_chunks("MSET", values)
  if beside then in_chunks("MSET", beside) end
  for queue, one in pairs(lines) do
    local last, turned = #one, {}
    for i = 1, last do turned[i] = one[last + 1 - i] end -- in a short set a new member is compared with those before it
    in_chunks("ZADD", turned, P .. "queue:" .. queue .. ":waiting")
  end
  if quiet then in_chunks("ZREM", quiet, P .. "quiet") end
  for i = 1, #wakeups do call("RPUSH", wakeups[i], "1") end
  if has_listeners then
    local jids, queue, klass = {}, nil, nil
    for i = 1, n do jids[i] = ARGV[3 * i] end
    quick_publish("job.put", jids, function(i)
      if ARGV[3 * i - 1] ~= "" then queue, klass = string.match(ARGV[3 * i - 1], "^%l+\n([^\n]+)\n([^\n]+)\n") end
      return queue, klass, {}
    end)
  end
  return answers
end

local put_all = quick_put()
if put_all then return put_all end
--- @rest
