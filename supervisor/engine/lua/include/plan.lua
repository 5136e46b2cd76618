-- plan.lua: the write half of every script. Changes are collected here while the script reads and checks; commit()
-- makes them as its very last step. Redis does not roll back, so nothing may be read or fail in between.
--- @include layout
--- @include keys
--- @include chunks
--- @include digits
local zsets, sets, gone, strings, dropped, wakeups, counters = {}, {}, {}, {}, {}, {}, {}
local lists, shifted, struck, messages, expiries, finishers, renamed, entries = {}, {}, {}, {}, {}, {}, {}, {}
local written_over = {}
local read_zsets = {} -- of these the type is known

-- Put a member into a sorted set, or take it out (score false). The last change to a member counts.
local function place(key, member, score)
  local members = zsets[key]
  if not members then
    members = {}
    zsets[key] = members
  end
  members[member] = score
end

-- By bytes, as Redis sorts members of one score. Lua's own order depends on the server's locale.
local function lies_before(a, b)
  for i = 1, math.min(#a, #b), 4 do
    local a1, a2, a3, a4 = string.byte(a, i, i + 3)
    local b1, b2, b3, b4 = string.byte(b, i, i + 3)
    if a1 ~= b1 then return a1 < b1 end
    if a2 ~= b2 then return (a2 or -1) < (b2 or -1) end
    if a3 ~= b3 then return (a3 or -1) < (b3 or -1) end
    if a4 ~= b4 then return (a4 or -1) < (b4 or -1) end
  end
  return #a < #b
end

-- Return the first `n` members of a sorted set as the plan leaves it: an array of member, score, member, score …
local function head_of(key, n)
  local planned, line, known = zsets[key], {}, 0
  read_zsets[key] = true
  if not planned then return redis.call("ZRANGE", key, 0, n - 1, "WITHSCORES") end
  for member, score in pairs(planned) do
    known = known + 1
    if score then line[#line + 1] = { member, tonumber(score) } end
  end
  local found = redis.call("ZRANGE", key, 0, n + known - 1, "WITHSCORES")
  for i = 1, #found, 2 do
    if planned[found[i]] == nil then line[#line + 1] = { found[i], tonumber(found[i + 1]) } end
  end
  table.sort(line, function(a, b)
    if a[2] ~= b[2] then return a[2] < b[2] end
    return lies_before(a[1], b[1])
  end)
  local head = {}
  for i = 1, math.min(n, #line) do
    head[2 * i - 1], head[2 * i] = line[i][1], line[i][2]
  end
  return head
end

-- Return the same without the scores.
local function first_members(key, n)
  if not zsets[key] then
    read_zsets[key] = true
    return redis.call("ZRANGE", key, 0, n - 1)
  end
  local head, members = head_of(key, n), {}
  for i = 1, #head, 2 do members[#members + 1] = head[i] end
  return members
end

-- Return a member's score as the plan leaves it; nil if it is not in the set.
local function score_of(key, member)
  local planned = zsets[key] and zsets[key][member]
  if planned == nil then
    read_zsets[key] = true
    planned = redis.call("ZSCORE", key, member)
  end
  return tonumber(planned or nil)
end

-- Return whether this script has taken a member out of a set.
local function left_already(key, member) return zsets[key] ~= nil and zsets[key][member] == false end

-- Store fields of a hash that this script has read.
local function set_fields(key_and_pairs) sets[#sets + 1] = key_and_pairs end
local function del_fields(key_and_fields) gone[#gone + 1] = key_and_fields end

local function store(key, value) strings[key] = value end

-- Write over a part of a string that this script has read, from a byte on.
local function overwrite(key, at, text) written_over[#written_over + 1] = { key, at, text } end

-- Remove a key of any type, and drop what was planned for it; later plans hold.
local function drop(key)
  dropped[#dropped + 1] = key
  strings[key], lists[key], zsets[key], entries[key] = nil, nil, nil, nil
end

-- Give a key that is there another name. What the other one had is lost.
local function rename(from, to) renamed[from] = to end

-- Append to a list that keeps its last `most` values, for `ttl` ms if given.
local function push(key, value, most, ttl)
  local list = lists[key] or { most = most, ttl = ttl }
  list[#list + 1] = value
  lists[key] = list
end

-- Append an entry, its id and its fields, to a stream of Redis that this script has read. Entries before the id `from`
-- go, and all of them after `ttl` ms.
local function append(key, entry, from, ttl)
  local stream = entries[key] or {}
  stream[#stream + 1], stream.from, stream.ttl = entry, from, ttl
  entries[key] = stream
end

-- Take the last `n` values off a list, or the first -`n`.
local function shift(key, n) shifted[key] = n end

-- Take one value out of a list that this script has read, the last of equal ones.
local function strike(key, value) struck[#struck + 1] = { key, value } end

-- Let a hash that this script has read expire.
local function expire(key, ttl) expiries[key] = ttl end

local function publish(channel, message) messages[#messages + 1] = { "PUBLISH", P .. channel, message } end

local nearest = {} -- queue -> the earliest time to which it has put off jobs, if this script knows it

-- Wake one waiting worker of the queue, or clear the wake-up key of a queue without jobs to lease. Waking wins.
local function wake(queue) wakeups[queue] = true end
local function clear_wakeup(queue) wakeups[queue] = wakeups[queue] or false end

-- End the script with an error of this kind, before anything was written.
local function refuse(code, why) error({ err = code .. " " .. why }) end

-- Raise a counter and return its new value; one that comes to 0 is deleted.
local function raise(counter, by)
  local state = counters[counter]
  if not state then
    local value = layout[counter] or redis.call("GET", P .. counter) or "0"
    if not string.find(value, "^-?%d+$") then
      refuse("REFUSED", counter .. " is no number: leasehold check --repair mends it")
    end
    state = { last = tonumber(value), raised = 0 }
    if counter == "token" and layout.first_token then state.last, state.verb = layout.first_token, "SET" end
    counters[counter] = state
  end
  state.raised = state.raised + by
  return state.last + state.raised
end

local function next_seq() return raise("seq", 1) end

-- Includes turn what they have collected into planned writes when the rest of the script is done.
local function finish_with(planner) finishers[#finishers + 1] = planner end

-- The same, ahead of the others: such a planner may use all includes.
local function finish_first_with(planner) table.insert(finishers, 1, planner) end

-- Drop the whole plan, and what includes have collected: the script does something else instead.
local function abandon()
  local planned = {
    zsets, sets, gone, strings, dropped, wakeups, counters, nearest,
    lists, shifted, struck, messages, expiries, finishers, renamed, entries, written_over,
  }
  for _, one in ipairs(planned) do
    for key in pairs(one) do one[key] = nil end
  end
end

local commit

do -- a script has at most 200 locals outside of blocks
  -- A queue that wakes a worker is not quiet any more (served.lua).
  local function wakeups_to_push()
    local pushed = {}
    for queue, wanted in pairs(wakeups) do
      local key = P .. "bell:" .. queue
      local is_set = redis.call("LLEN", key) > 0
      if wanted and not is_set then
        pushed[#pushed + 1] = key
        if redis.call("ZSCORE", P .. "quiet", queue) then place(P .. "quiet", queue, false) end
      end
      if is_set and not wanted then drop(key) end
    end
    return pushed
  end

  local function write_zset(key, members)
    local only, its_score = next(members)
    if only and next(members, only) == nil then -- mostly true for those of parents and tags
      if its_score then redis.call("ZADD", key, its_score, only) else redis.call("ZREM", key, only) end
      return
    end
    local added, removed = {}, {}
    for member, score in pairs(members) do
      if score then
        added[#added + 1] = score
        added[#added + 1] = member
      else
        removed[#removed + 1] = member
      end
    end
    in_chunks("ZREM", removed, key)
    in_chunks("ZADD", added, key)
  end

  local function write_list(key, list)
    in_chunks("RPUSH", list, key)
    redis.call("LTRIM", key, -list.most, -1)
    if list.ttl then redis.call("PEXPIRE", key, list.ttl) end
  end

  -- An entry that another program has overtaken is refused, and changes nothing.
  local function write_stream(key, stream)
    for _, entry in ipairs(stream) do redis.pcall("XADD", key, "MINID", "=", stream.from, unpack(entry)) end
    redis.call("PEXPIRE", key, stream.ttl)
  end

  local function flat(pairs_of_strings)
    local values = {}
    for key, value in pairs(pairs_of_strings) do
      values[#values + 1] = key
      values[#values + 1] = value
    end
    return values
  end

  function commit()
    for _, planner in ipairs(finishers) do planner() end
    if layout.state == "new" then -- the first write marks the layout
      local is_write = #sets > 0 or next(strings) or next(lists) or next(entries)
      for _, members in pairs(zsets) do
        for _, score in pairs(members) do is_write = is_write or score end
      end
      for _, name in ipairs(is_write and { "tracked", "tags", "workers" } or {}) do store(P .. name, "2") end
      if is_write then store(P .. "config", layout.mark()) end
    end
    local pushed = wakeups_to_push()
    --   A key of a wrong type must raise here, not half-way.
    for key in pairs(zsets) do
      if not read_zsets[key] then redis.call("ZCARD", key) end
    end
    for key in pairs(lists) do redis.call("LLEN", key) end
    for _, value in ipairs(struck) do redis.call("LLEN", value[1]) end
    for counter, state in pairs(counters) do
      if state.raised ~= 0 and state.last + state.raised == 0 then drop(P .. counter) end
    end
    local values = flat(strings)
    --   From here on nothing is read. An account may lack the right to rename.
    for from, to in pairs(renamed) do redis.call("RENAME", from, to) end
    for counter, state in pairs(counters) do
      local value = state.last + state.raised
      if state.verb and state.raised ~= 0 then
        redis.call("SET", P .. counter, digits(value))
      elseif state.raised ~= 0 and value ~= 0 then
        redis.call("INCRBY", P .. counter, state.raised)
      end
    end
    in_chunks("UNLINK", dropped)
    in_chunks("MSET", values)
    for _, part in ipairs(written_over) do redis.call("SETRANGE", unpack(part)) end
    for _, fields in ipairs(gone) do redis.call("HDEL", unpack(fields)) end
    for _, fields in ipairs(sets) do redis.call("HSET", unpack(fields)) end
    for key, members in pairs(zsets) do write_zset(key, members) end
    --   Before what is appended: a full list would lose a value that stays for one that goes.
    for _, value in ipairs(struck) do redis.call("LREM", value[1], -1, value[2]) end
    for key, list in pairs(lists) do write_list(key, list) end
    for key, stream in pairs(entries) do write_stream(key, stream) end
    for key, n in pairs(shifted) do redis.call("LTRIM", key, math.max(-n, 0), math.min(-n, 0) - 1) end
    for key, ttl in pairs(expiries) do redis.call("PEXPIRE", key, ttl) end
    for _, key in ipairs(pushed) do redis.call("RPUSH", key, "1") end
    --   Events, counters of times, and keys of other programs come last: nothing here depends on them, and an account
    --   may lack the right.
    for _, command in ipairs(messages) do redis.pcall(unpack(command)) end
  end
end
