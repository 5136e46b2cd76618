-- judge_place.lua: the place that a record names, and moves to such places.
--- @include evidence
--- @include parked
local AHEAD = -2 ^ 53 -- the score of a job that has a turn, in the line of a lane

local function record_of(jid)
  if records[jid] == nil then
    records[jid] = read_record(jid)
    if records[jid] then records[jid].jid = jid end
  end
  return records[jid]
end

local function is_over(rec) return rec.state == "failed" or rec.state == "complete" end

local function holder_of(rec)
  local token, worker = string.match(rec.owner or "", "^(%d+):(.+)$")
  if counted(token) then return token, worker end
end

local function line_of(queue, lane)
  return lane and "lane:" .. queue .. "\n" .. lane or "queue:" .. queue .. ":waiting"
end

-- The score of a lease says whether the record is dense, by the half that it lacks.
local function score_of_lease(rec, token)
  local is_dense = dense_records[rec] ~= nil and not changes[rec]
  return is_dense and whole(token) or whole(token) + 0.5
end

local function running_places(rec, at)
  local token, worker = holder_of(rec)
  local places = { { at .. "running", rec.jid, now } }
  if token then places[2] = { "held:" .. worker, rec.jid, score_of_lease(rec, token), true } end
  for _, key in ipairs(token and limits_in(rec.limit) or {}) do
    places[#places + 1] = { "holders:" .. key, rec.jid, whole(token), true }
  end
  return places
end

-- A waiting job is placed by its turn, if it has had one, else by its sequence.
local function waiting_places(rec, at)
  local jid, seq, turn = rec.jid, counted(rec.seq), counted(rec.turn)
  local wanted = waits_for(rec.parked)
  local apart = wanted == "klass" and is_given(rec.klass)
  local parked = apart or wanted == "limit" and parked_under(rec)
  if turn and not parked and not (rec.aside and rec.lane) then return { { at .. "front", jid, turn, true } } end
  if not turn and not seq then return {} end
  local member, score = member_of(jid, turn or seq), turn and AHEAD or whole(rec.priority) or 0
  if not parked then return { { line_of(rec.queue, rec.lane), member, score, true } } end
  local name = apart and "apart:" .. label_of(rec) or "limited:" .. parked
  local line = line_in(name, rec.queue, line_named(rec))
  return { { at .. (apart and "apart" or "parked"), jid, now }, { line, member, score, true } }
end

-- Return where a record says that its job lies: arrays of name, member, score, and whether the score must be exact.
local function places_of(rec)
  local jid, queue, state, seq = rec.jid, rec.queue, rec.state, counted(rec.seq)
  if state == "complete" then return { { "complete", jid, now + 0.5 } } end
  if state == "failed" then
    return { { "failed", jid, now }, is_given(rec.group) and { "failed:" .. rec.group, jid, now } or nil }
  end
  if not is_given(queue) then return {} end
  local at = "queue:" .. queue .. ":"
  if state == "running" then return running_places(rec, at) end
  if state == "depends" then return { { at .. "depends", jid, whole(rec.put) or now } } end
  if not state then return waiting_places(rec, at) end
  if state ~= "scheduled" or not seq then return {} end
  return { { at .. "scheduled", member_of(jid, seq), now } }
end

local function leave_all(rec)
  for _, spot in ipairs(places_of(rec)) do move_in(spot[1], spot[2], nil) end
end

local function settle_in(rec, due)
  for _, spot in ipairs(places_of(rec)) do move_in(spot[1], spot[2], due or spot[3]) end
  if rec.state and rec.state ~= "scheduled" then return end
  list_queue(rec.queue)
  read_and_wake(rec.queue)
end

local function strip(rec)
  for _, field in ipairs({ "owner", "started", "popped", "group", "due", "parked", "aside" }) do
    change(rec, field, nil)
  end
end

-- Put a job back into its queue: scheduled if its time is still to come, in front if it has a turn, else waiting.
local function requeue(rec, due)
  leave_all(rec)
  strip(rec)
  local later = due and due > now
  change(rec, "state", later and "scheduled" or nil)
  settle_in(rec, later and due or nil)
end
