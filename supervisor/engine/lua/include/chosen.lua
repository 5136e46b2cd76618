-- chosen.lua: jobs that are chosen by what they are.
--- @include parked
-- The state by which one chooses is what a reader sees, but for two: a parked job is parked, and one whose lease has
-- run out runs.
local function chosen_state(rec)
  if rec.state == "scheduled" then
    local key = queue_key(rec.queue, "scheduled")
    local due = tonumber(redis.call("ZSCORE", key, member_of(rec.jid, rec.seq)) or now)
    return due <= now and "waiting" or "scheduled"
  end
  return rec.state or waits_for(rec.parked) == "limit" and "parked" or "waiting"
end

-- The state of a job that is of the queue and the group ("" = of any), if it is one of these (a comma around each).
local function chosen_as(rec, queue, states, group)
  if queue ~= "" and rec.queue ~= queue or group ~= "" and rec.group ~= group then return nil end
  local state = chosen_state(rec)
  return string.find(states, "," .. state .. ",", 1, true) and state
end
