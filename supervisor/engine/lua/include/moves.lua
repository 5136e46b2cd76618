-- moves.lua: a job's places and the moves between them.
--- @module
--- @include config
--- @include edges
--- @include kin
--- @include events
--- @include stats
local group_sizes = {}

-- An id without its record: out of the way, and kept where a check finds it.
function moves.phantom(key, member, jid)
  place(key, member, false)
  place(P .. "phantoms", jid, now)
end

local function resize_group(group, by)
  local size = (group_sizes[group] or redis.call("ZCARD", P .. "failed:" .. group)) + by
  group_sizes[group] = size
  place(P .. "groups", group, size > 0 and now)
end

local leaving = {}

function leaving.running(rec)
  local token, worker = owner_of(rec)
  rec.turn, rec.since, holders[rec.jid] = rec.turn or token, now, worker
  place(queue_key(rec.queue, "running"), rec.jid, false)
  place(P .. "held:" .. worker, rec.jid, false)
  note_present(rec)
  if setting("max-concurrency", rec.queue) > 0 then ring(rec.queue) end
end

function leaving.scheduled(rec) place(queue_key(rec.queue, "scheduled"), member_of(rec.jid, rec.seq), false) end

function leaving.depends(rec)
  rec.since = now
  place(queue_key(rec.queue, "depends"), rec.jid, false)
  edges.unbind_all(rec.jid)
end

function leaving.failed(rec)
  tally(rec.queue, "failed", -1, redis.call("ZSCORE", P .. "failed", rec.jid) or now)
  place(P .. "failed", rec.jid, false)
  if not rec.group then return end -- half written: a check looks for such
  place(P .. "failed:" .. rec.group, rec.jid, false)
  resize_group(rec.group, -1)
end

function leaving.complete(rec)
  note_present(rec)
  place(P .. "complete", rec.jid, false)
  rec.turn = nil
end

function leaving.waiting(rec)
  if rec.turn then
    place(queue_key(rec.queue, "front"), rec.jid, false)
  else
    place(queue_key(rec.queue, "waiting"), member_of(rec.jid, rec.seq), false)
  end
end

-- Takes a job out of the place where it lies. Whatever lease it had is void with it.
function moves.leave(rec)
  leaving[rec.state or "waiting"](rec)
  rec.state, rec.owner, rec.started, rec.popped, rec.told, rec.group, rec.due = nil, nil, nil, nil, nil, nil, nil
end

-- The same for somebody else than its holder, who is told if it has one.
function moves.take_away(rec)
  if rec.state == "running" then
    local token, worker = owner_of(rec)
    hint(worker, "lost")
    tell_of("lease.lost", rec, { worker = worker, token = tonumber(token) })
  end
  moves.leave(rec)
end

-- To the front, in the order in which the jobs there were first leased.
function moves.to_front(rec)
  place(queue_key(rec.queue, "front"), rec.jid, rec.turn)
  ring(rec.queue)
end

-- To the back of its priority: its turn is over.
function moves.to_waiting(rec)
  rec.turn, rec.seq = nil, next_seq()
  place(queue_key(rec.queue, "waiting"), member_of(rec.jid, rec.seq), rec.priority or 0)
  ring(rec.queue)
end

-- Rings only if the new time comes before all others to come: the waiting workers know those.
function moves.to_scheduled(rec, due)
  local key, queue = queue_key(rec.queue, "scheduled"), rec.queue
  if not nearest[queue] then
    local found = redis.call("ZRANGEBYSCORE", key, "(" .. now, "+inf", "LIMIT", 0, 1, "WITHSCORES")
    nearest[queue] = tonumber(found[2]) or math.huge
  end
  if due < nearest[queue] then
    nearest[queue] = due
    ring(queue)
  end
  rec.state = "scheduled"
  place(key, member_of(rec.jid, rec.seq), due)
end

function moves.to_failed(rec, group, failure)
  local worker = holders[rec.jid]
  rec.state, rec.group = "failed", group
  place(P .. "failed", rec.jid, now)
  place(P .. "failed:" .. group, rec.jid, now)
  resize_group(group, 1)
  store(P .. "failure:" .. rec.jid, failure)
  tally(rec.queue, "failures", 1)
  tally(rec.queue, "failed", 1)
  note(rec, "failed", { group = group, worker = worker })
  tell_of("job.failed", rec, { group = group, worker = worker })
  if rec.kin then kin.parent_failed(rec) end
end

-- To the front, uncounted: a lease of this worker that it does not, or shall not, hold. False if it was not its own.
function moves.hand_back(jid, worker)
  local rec = read_job(jid)
  local _, owner = owner_of(rec or {})
  place(P .. "held:" .. worker, jid, false)
  if owner ~= worker or rec.state ~= "running" then return false end
  moves.leave(rec)
  moves.to_front(rec)
  return true
end
