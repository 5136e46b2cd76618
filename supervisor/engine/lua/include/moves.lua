-- moves.lua: a job's places and the moves between them.
--- @module
--- @include config
--- @include started
--- @include edges
--- @include kin
--- @include events
--- @include stats
--- @include lanes
--- @include limits
--- @include lines
--- @include apart
--- @include claims
--- @include streams
--- @include batches
--- @include modes
--- @include door_ends
-- Jobs that this script gives to a worker. Until its end they are stored as waiting.
moves.given = {}
-- Bytes that ends of jobs which came by doors have told other programs, and after how many a call ends no more.
moves.told_bytes, moves.MOST_TOLD = 0, 1048576

local group_sizes = {}
local MESSAGE_BYTES = 512 -- of a failure's message in events

-- An id without its record is moved aside, where a check finds it.
function moves.phantom(key, member, jid)
  place(key, member, false)
  place(P .. "phantoms", jid, now)
end

local function resize_group(group, by)
  local size = (group_sizes[group] or redis.call("ZCARD", P .. "failed:" .. group)) + by
  group_sizes[group] = size
  place(P .. "groups", group, size > 0 and now)
end

-- Return whether a job must never start twice.
function moves.is_once(rec) return rec.once == "1" end

-- Fail a job that has not started by its deadline.
function moves.fail_expired(rec)
  moves.leave(rec)
  local message = "it was not started within " .. rec.expires / 1000 .. " s of its put"
  moves.to_failed(rec, "expired", failure_of("expired", message))
end

-- An at-most-once job was taken from its worker, or released by it, after it may have started.
function moves.fail_interrupted(rec, worker, reason)
  local message = "it was stopped" .. (reason and " (" .. reason .. ")" or "") .. ", and must not be started twice"
  moves.to_failed(rec, "interrupted", failure_of("interrupted", message, worker))
end

local leaving = {}

function leaving.running(rec)
  local token, worker = owner_of(rec) -- neither in a damaged record, whose job must be able to go all the same
  rec.turn, rec.since, holders[rec.jid] = rec.turn or token or 0, now, worker
  holds[rec.jid] = now - (rec.popped or now)
  if rec.persistent then rec.left = worker end
  place(queue_key(rec.queue, "running"), rec.jid, false)
  if worker then place(P .. "held:" .. worker, rec.jid, false) end
  note_present(rec)
  if rec.limit then limits.give_back(rec) end
  if setting("max-concurrency", rec.queue) > 0 then wake(rec.queue) end
end

function leaving.scheduled(rec)
  rec.waits_for = nil
  place(queue_key(rec.queue, "scheduled"), member_of(rec.jid, rec.seq), false)
end

function leaving.depends(rec)
  rec.since = now
  place(queue_key(rec.queue, "depends"), rec.jid, false)
  edges.unbind_all(rec.jid)
end

function leaving.failed(rec)
  if rec.batch then batches.member_back(rec.batch, rec.jid, "failed", rec.put) end
  if rec.streamed then streams.forget(rec) end
  tally(rec.queue, "failed", -1, redis.call("ZSCORE", P .. "failed", rec.jid) or now)
  place(P .. "failed", rec.jid, false)
  if not rec.group then return end -- half written: a check repairs it
  place(P .. "failed:" .. rec.group, rec.jid, false)
  resize_group(rec.group, -1)
end

function leaving.complete(rec)
  if rec.batch then batches.member_back(rec.batch, rec.jid, "complete", rec.put) end
  if rec.streamed then streams.forget(rec) end
  note_present(rec)
  place(P .. "complete", rec.jid, false)
  rec.turn = nil
end

function leaving.waiting(rec)
  local was_parked = rec.parked
  moves.step_out(rec)
  if rec.limit and not was_parked then limits.offer_to_others(rec) end
end

-- Take a waiting job out of its line, for another.
function moves.step_out(rec)
  local wanted = waits_for(rec.parked)
  if wanted == "klass" then
    apart.take_out(rec)
  elseif wanted == "limit" then
    limits.unpark(rec)
  elseif rec.turn and not rec.aside then
    place(queue_key(rec.queue, "front"), rec.jid, false)
  elseif rec.lane then
    lanes.remove(rec)
  else
    place(queue_key(rec.queue, "waiting"), member_of(rec.jid, rec.seq), false)
  end
  rec.aside = nil
end

-- Take a job out of its place. Its lease becomes void.
function moves.leave(rec)
  leaving[rec.state or "waiting"](rec)
  rec.state, rec.owner, rec.started, rec.popped, rec.told, rec.group, rec.due = nil, nil, nil, nil, nil, nil, nil
  rec.ready = nil
end

-- A job completes, fails or is cancelled: end its claim, its deadline, its stream and its waiters, and tell its batch.
-- `said`: its result as JSON, or its failure.
function moves.ended(rec, state, said)
  if rec.unique then claims.release(rec) end
  if rec.mode and state == "cancelled" then modes.cancelled(rec) end
  if rec.expires then place(P .. "expiring", rec.jid, false) end
  if rec.streamed then streams.finish(rec, state) end
  if rec.batch then batches.member_ended(rec.batch, rec.jid, state) end
  if rec.door then door_ends.tell(rec, state, said) end
  if not rec.awaited then return end
  for _ = 1, math.min(rec.awaited, 100) do push(P .. "ended:" .. rec.jid, "1", 100, 60000) end
  rec.awaited = nil
end

-- Take a job out of its place for an actor other than the lease's holder, which gets a hint.
function moves.take_away(rec)
  local token, worker = owner_of(rec)
  if rec.state == "running" and worker then
    hint(worker, "lost", token)
    publish_job_event("lease.lost", rec, { worker = worker, token = tonumber(token) })
  end
  moves.leave(rec)
end

-- A queue has jobs to lease. A lease wakes a worker for the queue that it serves at its end, when the rest is known.
function moves.wake_unless_served(queue)
  if queue ~= moves.served then wake(queue) end
end

-- A job that has lost its lease was not started by it.
function moves.was_not_started(rec)
  if rec.limit then limits.take_back_start(rec, holds[rec.jid]) end
  --   A sweep that ran at its deadline has left the job alone.
  if rec.expires and not has_started(rec) then place(P .. "expiring", rec.jid, rec.put + rec.expires) end
end

-- To the front, in the order in which the jobs there were first leased.
function moves.to_front(rec)
  place(queue_key(rec.queue, "front"), rec.jid, rec.turn)
  moves.wake_unless_served(rec.queue)
end

-- To the back of its priority: its turn is over.
function moves.to_waiting(rec)
  rec.turn, rec.seq = nil, next_seq()
  moves.line_up(rec)
end

-- To its place by its number in its line.
function moves.line_up(rec)
  if rec.lane then
    lanes.add(rec)
  else
    place(queue_key(rec.queue, "waiting"), member_of(rec.jid, rec.seq), rec.priority or 0)
  end
  moves.wake_unless_served(rec.queue)
end

-- From the front into its own line, ahead of all: its lane is paused.
function moves.set_aside(rec)
  moves.step_out(rec)
  rec.aside = 1
  lanes.add(rec)
end

-- Wake a worker only if the new time is the earliest: the waiting workers know the others.
function moves.to_scheduled(rec, due)
  local key, queue = queue_key(rec.queue, "scheduled"), rec.queue
  if not nearest[queue] then
    local found = redis.call("ZRANGEBYSCORE", key, "(" .. now, "+inf", "LIMIT", 0, 1, "WITHSCORES")
    nearest[queue] = tonumber(found[2]) or math.huge
  end
  if due < nearest[queue] then
    nearest[queue] = due
    wake(queue)
  end
  rec.state = "scheduled"
  place(key, member_of(rec.jid, rec.seq), due)
end

-- Return how many bytes the UTF-8 character or JSON escape at `at` has.
local function length_at(text, at)
  local first = string.byte(text, at)
  if first == 92 then return string.byte(text, at + 1) == 117 and 6 or 2 end -- \u0000, or \n and the like
  return first >= 240 and 4 or first >= 224 and 3 or first >= 192 and 2 or 1
end

-- Return the beginning of a failure's message, in whole characters, as it stands in the failure's JSON.
function moves.message_in(failure)
  local _, before = string.find(failure, '"message":"', 1, true)
  if not before then return "" end
  local at = before + 1
  while at - before <= MESSAGE_BYTES and at <= #failure and string.byte(failure, at) ~= 34 do
    at = at + length_at(failure, at)
  end
  return string.sub(failure, before + 1, at - 1)
end

function moves.to_failed(rec, group, failure)
  local worker = holders[rec.jid]
  moves.ended(rec, "failed", failure)
  rec.state, rec.group = "failed", group
  place(P .. "failed", rec.jid, now)
  place(P .. "failed:" .. group, rec.jid, now)
  resize_group(group, 1)
  store(P .. "failure:" .. rec.jid, failure)
  tally(rec.queue, "failures", 1)
  tally(rec.queue, "failed", 1)
  note(rec, "failed", { group = group, worker = worker })
  if rec.tracked or has_listeners() then
    publish_job_event("job.failed", rec, { group = group, worker = worker }, moves.message_in(failure))
  end
  if rec.kin then kin.parent_failed(rec) end
end

-- To the front, uncounted: a lease of this worker that it does not, or shall not, hold. Return false if it was not its
-- own. `certain`: the job has not started.
function moves.hand_back(jid, worker, certain)
  local rec = read_job(jid)
  local _, owner = owner_of(rec or {})
  place(P .. "held:" .. worker, jid, false)
  if owner ~= worker or rec.state ~= "running" then return false end
  local was_started = rec.started and not certain
  moves.leave(rec)
  if moves.is_once(rec) and not certain then
    moves.fail_interrupted(rec, worker)
  else
    if not was_started then moves.was_not_started(rec) end
    if was_started then rec.begun = 1 elseif not certain then rec.lost = 1 end
    moves.to_front(rec)
  end
  return true
end
