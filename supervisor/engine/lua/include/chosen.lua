-- chosen.lua: which jobs match a choice.
--- @include parked
-- Return the state by which a job is chosen. It is what a query shows, except that a parked job is parked, and a
-- stalled one is running.
local function chosen_state(rec)
  if rec.state == "scheduled" then
    local key = queue_key(rec.queue, "scheduled")
    local due = tonumber(redis.call("ZSCORE", key, member_of(rec.jid, rec.seq)) or now)
    return due <= now and "waiting" or "scheduled"
  end
  return rec.state or waits_for(rec.parked) == "limit" and "parked" or "waiting"
end

-- Return the state of a job of the queue, the group and the klass ("" = any) if it is one of `states` (a comma around
-- each).
local function chosen_as(rec, queue, states, group, klass)
  if queue ~= "" and rec.queue ~= queue or group ~= "" and rec.group ~= group then return nil end
  if klass ~= "" and rec.klass ~= klass then return nil end
  local state = chosen_state(rec)
  return string.find(states, "," .. state .. ",", 1, true) and state
end
