-- plan.lua: the write half of every script. What is to change is collected here while the script reads and checks;
-- commit() carries it out as its very last step. Redis does not roll back, so nothing may be read or fail in between.
--- @include keys
local zsets, sets, gone, strings, dropped, bells, counters = {}, {}, {}, {}, {}, {}, {}
local lists, messages, expiries, finishers = {}, {}, {}, {}

-- Puts a member into a sorted set, or takes it out (score false). The last word on a member counts.
local function place(key, member, score)
  local members = zsets[key]
  if not members then
    members = {}
    zsets[key] = members
  end
  members[member] = score
end

-- Fields of a hash that this script has read.
local function set_fields(key_and_pairs) sets[#sets + 1] = key_and_pairs end
local function del_fields(key_and_fields) gone[#gone + 1] = key_and_fields end

local function store(key, value) strings[key] = value end

-- Removes a key of whatever type, and takes back what was planned for it; what is planned after that holds.
local function drop(key)
  dropped[#dropped + 1] = key
  strings[key], lists[key], zsets[key] = nil, nil, nil
end

-- Appends to a list that keeps its last `most` values, for `ttl` ms if that is given.
local function push(key, value, most, ttl)
  local list = lists[key] or { most = most, ttl = ttl }
  list[#list + 1] = value
  lists[key] = list
end

-- Lets a hash that this script has read end by itself.
local function expire(key, ttl) expiries[key] = ttl end

local function publish(channel, message) messages[#messages + 1] = { P .. channel, message } end

local nearest = {} -- queue -> the first time to come of what it has put off, where this script knows it

-- Wakes one waiting worker of the queue; a silenced bell is one that nothing is left to be woken for. Ringing wins.
local function ring(queue) bells[queue] = true end
local function silence(queue) bells[queue] = bells[queue] or false end

-- Raises a counter and answers its new value.
local function raise(counter, by)
  local state = counters[counter]
  if not state then
    state = { last = tonumber(redis.call("GET", P .. counter)) or 0, raised = 0 }
    counters[counter] = state
  end
  state.raised = state.raised + by
  return state.last + state.raised
end

local function next_seq() return raise("seq", 1) end

-- Ends the script with an error of this kind, before anything was written.
local function refuse(code, why) error({ err = code .. " " .. why }) end

-- What an include has collected becomes planned writes when the script has said all it has to say.
local function finish_with(planner) finishers[#finishers + 1] = planner end

local function bells_to_push()
  local pushed = {}
  for queue, wanted in pairs(bells) do
    local bell = P .. "bell:" .. queue
    local rung = redis.call("LLEN", bell) > 0
    if wanted and not rung then pushed[#pushed + 1] = bell end
    if rung and not wanted then drop(bell) end
  end
  return pushed
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

local function write_list(key, list)
  in_chunks("RPUSH", list, key)
  redis.call("LTRIM", key, -list.most, -1)
  if list.ttl then redis.call("PEXPIRE", key, list.ttl) end
end

local function flat(pairs_of_strings)
  local values = {}
  for key, value in pairs(pairs_of_strings) do
    values[#values + 1] = key
    values[#values + 1] = value
  end
  return values
end

local function commit()
  for _, planner in ipairs(finishers) do planner() end
  -- A key of a wrong type must raise here, not half-way.
  for key in pairs(zsets) do redis.call("ZCARD", key) end
  for key in pairs(lists) do redis.call("LLEN", key) end
  local pushed, values = bells_to_push(), flat(strings)
  -- From here on nothing is read.
  for counter, state in pairs(counters) do redis.call("INCRBY", P .. counter, state.raised) end
  in_chunks("UNLINK", dropped)
  in_chunks("MSET", values)
  for _, fields in ipairs(gone) do redis.call("HDEL", unpack(fields)) end
  for _, fields in ipairs(sets) do redis.call("HSET", unpack(fields)) end
  for key, members in pairs(zsets) do write_zset(key, members) end
  for key, list in pairs(lists) do write_list(key, list) end
  for key, ttl in pairs(expiries) do redis.call("PEXPIRE", key, ttl) end
  for _, bell in ipairs(pushed) do redis.call("RPUSH", bell, "1") end
  for _, message in ipairs(messages) do redis.call("PUBLISH", unpack(message)) end
end
