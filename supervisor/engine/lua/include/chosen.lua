-- chosen.lua: which jobs match a choice.
--- @include keys
--- @include parked
-- Return the choice in an argument of ten lines, an empty one for any: queue; states, a comma around each; group;
-- klass; tag; lane; batch; the first and the last time of the put in ms; a part of the jid. An empty argument is any
-- job.
local function choice_in(text)
  local lines = {}
  for line in string.gmatch(text .. "\n", "([^\n]*)\n") do lines[#lines + 1] = line end
  local function given(n) return lines[n] ~= "" and lines[n] or nil end
  return {
    queue = given(1), states = given(2), group = given(3), klass = given(4), tag = given(5), lane = given(6),
    batch = given(7), first_put = tonumber(given(8)), last_put = tonumber(given(9)), part = given(10),
  }
end

local function wants(choice, state)
  return not choice.states or string.find(choice.states, "," .. state .. ",", 1, true) ~= nil
end

-- Return the state by which a job is chosen. It is what a query shows, except that a parked job is parked.
local function chosen_state(rec)
  if rec.state == "scheduled" then
    local key = queue_key(rec.queue, "scheduled")
    local due = tonumber(redis.call("ZSCORE", key, member_of(rec.jid, rec.seq)) or now)
    return due <= now and "waiting" or "scheduled"
  elseif rec.state == "running" then
    local expiry = tonumber(redis.call("ZSCORE", queue_key(rec.queue, "running"), rec.jid))
    return expiry and expiry <= now and "stalled" or "running"
  end
  return rec.state or waits_for(rec.parked) == "limit" and "parked" or "waiting"
end

local COMPARED = { "klass", "queue", "group", "lane", "batch" }

-- Return the state of a job if it matches the choice, else nil.
local function chosen_as(rec, choice)
  for _, name in ipairs(COMPARED) do
    if choice[name] and rec[name] ~= choice[name] then return nil end
  end
  local put = tonumber(rec.put) or 0
  if choice.first_put and put < choice.first_put or choice.last_put and put > choice.last_put then return nil end
  if choice.part and not string.find(rec.jid, choice.part, 1, true) then return nil end
  if choice.tag and not redis.call("ZSCORE", P .. "tag:" .. choice.tag, rec.jid) then return nil end
  local state = chosen_state(rec)
  return wants(choice, state) and state or nil
end
