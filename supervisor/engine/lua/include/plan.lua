-- plan.lua: the write half of every script. What is to change is collected here while the script reads and checks;
-- commit() carries it out as its very last step. Redis does not roll back, so nothing may be read or fail in between.
--- @include keys
local zsets, sets, gone, strings, dropped, bells, counters, others = {}, {}, {}, {}, {}, {}, {}, {}

-- Puts a member into a sorted set, or takes it out (score false). The last word on a member counts.
local function place(key, member, score)
  local members = zsets[key]
  if not members then
    members = {}
    zsets[key] = members
  end
  members[member] = score
end

local function set_fields(key_and_pairs) sets[#sets + 1] = key_and_pairs end
local function del_fields(key_and_fields) gone[#gone + 1] = key_and_fields end

local function store(key, value)
  strings[#strings + 1] = key
  strings[#strings + 1] = value
end

local function drop(key) dropped[#dropped + 1] = key end

-- Any other write, last of all; its key must have been read, so that a wrong type has shown before the first write.
local function write(...) others[#others + 1] = { ... } end

-- Wakes one waiting worker of the queue; a silenced bell is one that nothing is left to be woken for. Ringing wins.
local function ring(queue) bells[queue] = true end
local function silence(queue) bells[queue] = bells[queue] or false end

-- Raises a counter and answers its new value.
local function raise(counter, by)
  local state = counters[counter]
  if not state then
    state = { last = tonumber(redis.call("GET", P .. counter) or 0), raised = 0 }
    counters[counter] = state
  end
  state.raised = state.raised + by
  return state.last + state.raised
end

local function next_seq() return raise("seq", 1) end

local function bells_to_push()
  local push = {}
  for queue, wanted in pairs(bells) do
    local bell = P .. "bell:" .. queue
    local rung = redis.call("LLEN", bell) > 0
    if wanted and not rung then push[#push + 1] = bell end
    if rung and not wanted then drop(bell) end
  end
  return push
end

-- At most 1,000 values a call: Lua's stack ends at about 8,000.
local function in_chunks(command, values, key)
  for first = 1, #values, 1000 do
    local last = math.min(first + 999, #values)
    if key then
      redis.call(command, key, unpack(values, first, last))
    else
      redis.call(command, unpack(values, first, last))
    end
  end
end

local function write_zset(key, members)
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

local function commit()
  for key in pairs(zsets) do redis.call("ZCARD", key) end -- a key of a wrong type must raise here, not half-way
  local push = bells_to_push()
  -- From here on nothing is read.
  for counter, state in pairs(counters) do redis.call("INCRBY", P .. counter, state.raised) end
  in_chunks("UNLINK", dropped)
  in_chunks("MSET", strings)
  for _, fields in ipairs(gone) do redis.call("HDEL", unpack(fields)) end
  for _, fields in ipairs(sets) do redis.call("HSET", unpack(fields)) end
  for key, members in pairs(zsets) do write_zset(key, members) end
  for _, bell in ipairs(push) do redis.call("RPUSH", bell, "1") end
  for _, command in ipairs(others) do redis.call(unpack(command)) end
end
