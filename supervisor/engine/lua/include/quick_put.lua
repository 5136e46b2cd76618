-- quick_put.lua: new jobs that only wait, with no options but numbers and a trace.
--- @include quick
-- Return what the first argument of a short put says; nil for a long one. The records of all its jobs are `front`, a
-- number, `back` and the payload; `front_beside` if the payload lies beside.
local function quick_head(text, lines)
  local queue, klass, kind, options = string.match(text, "^%l+\n([^\n]+)\n([^\n]+)\n([jb])\n([^\n]*)$")
  if not queue then return nil end
  local line = lines[queue] or {}
  lines[queue] = line
  options = string.gsub(options, "^p0 ?", "") -- the default
  return {
    queue = queue, klass = klass, line = line, priority = string.match(options, "^p(%S+)") or "0",
    front = "1" .. kind .. " ", front_beside = "1" .. string.upper(kind) .. " ",
    back = " " .. now_in_record .. "\n" .. queue .. "\n" .. klass .. "\n" .. options .. "\n",
  }
end

local function quick_put()
  local seq = is_quick and value_of("seq")
  if not seq then return nil end
  local call, format, of_job, inline, n = redis.call, string.format, P .. "job:", INLINE, 0
  local heads, lines, seen, keys, values, beside, answers, heard, head = {}, {}, {}, {}, {}, {}, {}, {}, nil
  for at = 2, #ARGV, 3 do
    local text, jid, data = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    if text ~= "" then
      head = heads[text] or quick_head(text, lines)
      if not head then return nil end
      heads[text] = head
    end
    if seen[jid] then return nil end
    n = n + 1
    local number, key, line, size = format("%013x", seq + n), of_job .. jid, head.line, #data
    seen[jid], keys[n], values[2 * n - 1], answers[n], heard[n] = true, key, key, 1, head
    if size <= inline then
      values[2 * n] = head.front .. number .. head.back .. data
    else
      values[2 * n] = head.front_beside .. number .. head.back .. size
      beside[#beside + 1] = P .. "data:" .. jid
      beside[#beside + 1] = data
    end
    line[#line + 1], line[#line + 2] = number .. jid, head.priority
  end
  if n == 0 then return nil end
  keys[n + 1] = P .. "tracked-jobs"
  keys[n + 2] = P .. "quiet"
  local exist, others, wakeups, quiet = 0, 0, {}, {}
  for queue in pairs(lines) do
    local last = #keys
    keys[last + 1], keys[last + 2] = P .. "queue:" .. queue .. ":waiting", P .. "bell:" .. queue
  end
  for first = 1, #keys, 1000 do
    exist = exist + call("EXISTS", unpack(keys, first, math.min(first + 999, #keys)))
  end
  local is_any_quiet = exist > 0 and call("ZCARD", P .. "quiet") > 0
  if is_any_quiet then others = 1 end
  for queue in pairs(lines) do
    local bell = P .. "bell:" .. queue
    local is_empty = exist == 0 or call("ZCARD", P .. "queue:" .. queue .. ":waiting") == 0
    if not is_empty then others = others + 1 end
    if exist > 0 and call("LLEN", bell) > 0 then
      others = others + 1
    else
      wakeups[#wakeups + 1] = bell
      if is_any_quiet and call("ZSCORE", P .. "quiet", queue) then quiet[#quiet + 1] = queue end
    end
    if not call("ZSCORE", P .. "queues", queue) or is_empty and call("ZSCORE", P .. "idle", queue) then return nil end
  end
  if exist > others then return nil end -- one of these jobs is known, or some jobs are tracked
  local has_heard = has_listeners()

  -- From here on nothing is read.
  values[2 * n + 1], values[2 * n + 2] = P .. "seq", format("%d", seq + n)
  in_chunks("MSET", values)
  in_chunks("MSET", beside)
  for queue, line in pairs(lines) do
    --     Redis compares a new member with those before it in a short set, so the last come first.
    local last, turned = #line, {}
    for i = 1, last do turned[i] = line[last + 1 - i] end
    in_chunks("ZADD", turned, P .. "queue:" .. queue .. ":waiting")
  end
  in_chunks("ZREM", quiet, P .. "quiet")
  for _, key in ipairs(wakeups) do call("RPUSH", key, "1") end
  if has_heard then
    for i = 1, n do quick_event("job.put", ARGV[3 * i], heard[i].queue, heard[i].klass, {}) end
  end
  return answers
end

local put_all = quick_put()
if put_all then return put_all end
--- @rest
