-- quick_put.lua: new jobs that only wait, with no options but numbers and a trace.
--- @include quick
local QUICK_OPTIONS = { priority = "0", retries = "", timeout = "", max_deaths = "", trace = "" } -- and their defaults

-- Return what HSET takes for the record of the put that begins at an argument, its priority, and where the next one
-- begins; nil if this path does not suffice.
local function quick_new(at, queue, jid, seq)
  local verb, _, _, klass, kind, data, delay, time, options = unpack(ARGV, at, at + 8)
  if delay ~= "" or time ~= "" then return nil end
  local set, priority = { P .. "job:" .. jid, "klass", klass, "queue", queue, "seq", seq, "put", now_text }, 0
  if kind == "bytes" then set[10], set[11] = "bytes", "1" elseif kind ~= "json" then return nil end
  if #data > 1024 then set[#set + 1], set[#set + 2] = "size", #data end
  for i = at + 9, at + 8 + 2 * options, 2 do
    local option, value = ARGV[i], ARGV[i + 1]
    local default = QUICK_OPTIONS[option]
    if not default then return nil end
    if value ~= "" and value ~= default then
      set[#set + 1], set[#set + 2] = option, value
      if option == "priority" then priority = value end
    end
  end
  return set, priority, at + 9 + 2 * options
end

local function quick_put()
  if has_listeners() then return nil end
  local call, at, n, argc = redis.call, 2, 0, #ARGV
  local records, keys, values, by_queue, seen, answers = {}, {}, {}, {}, {}, {}
  local seq = value_of("seq")
  if not seq then return nil end
  while at <= argc do
    n = n + 1
    local queue, jid = ARGV[at + 1], ARGV[at + 2]
    local set, priority, after = quick_new(at, queue, jid, seq + n)
    if not set or seen[jid] then return nil end
    local line = by_queue[queue] or {}
    by_queue[queue], seen[jid], records[n], keys[n], answers[n] = line, true, set, set[1], 1
    line[#line + 1] = priority
    line[#line + 1] = string.format("%013x", seq + n) .. jid
    values[2 * n - 1], values[2 * n] = P .. "data:" .. jid, ARGV[at + 5]
    at = after
  end
  keys[n + 1] = P .. "tracked-jobs"
  for first = 1, n + 1, 1000 do
    if call("EXISTS", unpack(keys, first, math.min(first + 999, n + 1))) > 0 then return nil end
  end
  local wakeups, quiet = {}, {}
  for queue in pairs(by_queue) do
    if not call("ZSCORE", P .. "queues", queue) then return nil end
    local is_empty = call("ZCARD", P .. "queue:" .. queue .. ":waiting") == 0
    if is_empty and call("ZSCORE", P .. "idle", queue) then return nil end
    if call("LLEN", P .. "bell:" .. queue) == 0 then
      wakeups[#wakeups + 1] = P .. "bell:" .. queue
      if call("ZSCORE", P .. "quiet", queue) then quiet[#quiet + 1] = queue end
    end
  end

  -- From here on nothing is read.
  call("INCRBY", P .. "seq", n)
  in_chunks("MSET", values)
  for i = 1, n do call("HSET", unpack(records[i])) end
  for queue, line in pairs(by_queue) do in_chunks("ZADD", line, P .. "queue:" .. queue .. ":waiting") end
  in_chunks("ZREM", quiet, P .. "quiet")
  for _, key in ipairs(wakeups) do call("RPUSH", key, "1") end
  return answers
end

local put_all = quick_put()
if put_all then return put_all end
