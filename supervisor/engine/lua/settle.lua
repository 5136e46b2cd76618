#!lua flags=allow-oom
-- settle.lua — end a batch of leases, each with its outcome.
--
-- Called by: settling.settle (supervisor/engine/commands/settling.py)
-- Holds:     INV-3 only the current token and worker may settle, and once; INV-6 three separate counts
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   number of the exchange; "" = none. The last number again changes nothing and gets the same reply; with a
--           smaller one all outcomes are stale.
-- ARGV[4]   number of completions in short: of jobs that the lease gave with a dense record
-- ARGV[5..] if there are some: their jids; their tokens; number of groups, and of each its queue, when it was leased
--           (unix ms), and how many of these jobs in turn it has; number of results, and of each the number of its job
--           in turn, and the result as JSON. Then per further outcome: verb, jid, token, and the arguments of the verb
--           complete   result as JSON | ""
--           advance    next queue | "" = none, kind of new data ("", "json", "bytes"), the data | "", delay in ms,
--                      jids to depend on, one a line, result as JSON | ""
--           retry      delay in ms | "", group | "", default retries | "", failure as JSON
--           fail       group, failure as JSON, kind of new data, the data | ""
--           release    "1" if the job had started else "", reason | "", delay in ms | "" (not started: the job comes
--                      back to the front after it)
--           died       reason, default deaths allowed | "", failure as JSON
--           unknown    longest delay in ms (a live peer with a handler for the klass gets the job without delay)
--           misfit     shape that the worker's handler takes and the data do not have, failure as JSON (a live peer
--                      with another shape gets the job; without one it fails in group broken)
--           return     nothing: the handler of a persistent job has returned; any other job completes
--           suspend    signal that the job waits for, longest time in ms | "" = none
--           or "follow" and the arguments of one put (put.lua): applied if the outcome before it was accepted
--
-- Returns   one string, the answers joined by commas: complete, advance, fail, release, return and suspend "1" or "0"
--           (stale); "!" for an outcome that would wait for itself, or whose follow-ups would, or are too much work for
--           any call, or belong to a batch that is not the job's own: nothing has changed for it; likewise "#" for one
--           that needs a new queue above 100,000, "~" for a complete or advance of a persistent job, or a suspend of
--           one or of an at-most-once job, and "+" for one whose follow-ups are too much work beside what this call has
--           done before, or that comes after ends of batches, or of jobs behind doors, that are enough work for a call:
--           it is to be sent again; retry "=" and the retries remaining; died, unknown and misfit the new state; an
--           empty answer for a stale retry, died, unknown or misfit.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include while_moving
--- @include this_layout
--- @include clock
--- @include quick_settle
--- @include death
--- @include stage
--- @include retention
--- @include replay
--- @rest
local worker, number = ARGV[2], tonumber(ARGV[3])
local ARGUMENTS = {
  complete = 1, advance = 6, retry = 4, fail = 4, release = 3, died = 3, unknown = 1, misfit = 2, ["return"] = 0,
  suspend = 2,
}
local STALE = {
  complete = "0", advance = "0", fail = "0", release = "0", ["return"] = "0", suspend = "0", retry = "", died = "",
  unknown = "", misfit = "",
}
local ENDLESS, REFUSED, TOO_MANY_QUEUES, LATER = "~", "!", "#", "+"
local WITHOUT_EFFECT = { [ENDLESS] = true, [REFUSED] = true, [TOO_MANY_QUEUES] = true, [LATER] = true }
local DEFAULT_RETRIES = 5
local FIRST_UNKNOWN = 1000 -- ms
local MOST_PRUNED = 500 -- failed jobs; a sweep prunes the rest
local MOST_REMOVED = 3000 -- edges and tags of known jobs, by follow-ups
local KEEP = keeps_completed()

local answers, completed, failed = {}, 0, 0

local function fail_in(rec, group, failure)
  moves.to_failed(rec, group, failure)
  failed = failed + 1
end

local function finish(rec, result)
  local jid, queue = rec.jid, rec.queue
  place(queue_key(queue, "running"), jid, false)
  place(P .. "held:" .. worker, jid, false)
  if setting("max-concurrency", queue) > 0 then wake(queue) end
  spread(queue, "run", now - (rec.popped or now))
  if rec.limit then limits.give_back(rec) end
  forget_starts(rec)
  if rec.noted then drop(P .. "failure:" .. jid) end -- each failure has a line in the history
  moves.ended(rec, "complete", result)
  publish_job_event("job.completed", rec, { worker = worker })
  if KEEP then
    rec.state = "complete"
    place(P .. "complete", jid, (is_special(rec) or result ~= "") and special_score(now) or now)
    if result ~= "" then store(P .. "result:" .. jid, result) end
    completed = completed + 1
  else
    retention.erase_all({ jid })
    if rec.kin then results.keep_new(jid, result) end
  end
  if rec.kin then kin.parent_done(jid) end
  return "1"
end

-- The handler of a persistent job has returned.
local function lay_in_front(rec)
  if death.come_back(rec) == "waiting" then moves.to_front(rec) end
end

local verbs = {}

function verbs.complete(rec, at)
  if rec.persistent then return ENDLESS end
  return finish(rec, ARGV[at])
end

function verbs.advance(rec, at)
  if rec.persistent then return ENDLESS end
  local queue, kind, data, delay, depends, result = unpack(ARGV, at, at + 5)
  local parents = lines_of(depends)
  if stage.why_not(rec, parents) then return REFUSED end
  if queue ~= "" and not stage.has_room(queue) then return TOO_MANY_QUEUES end
  if kind ~= "" then stage.set_data(rec, kind, data) end
  if queue == "" then return finish(rec, result) end
  spread(rec.queue, "run", now - (rec.popped or now))
  moves.leave(rec)
  note(rec, "advanced", { to = queue })
  publish_job_event("job.advanced", rec, { to = queue, worker = worker })
  drop(P .. "failure:" .. rec.jid)
  drop(P .. "progress:" .. rec.jid)
  rec.progress = nil
  forget_starts(rec)
  stage.begin(rec, queue)
  results.set_parents(rec, parents)
  stage.lay_down(rec, now + delay, parents)
  if rec.state == "failed" then failed = failed + 1 end
  return "1"
end

function verbs.retry(rec, at)
  local delay, group, retries, failure = unpack(ARGV, at, at + 3)
  moves.leave(rec)
  rec.failures, rec.unknown = (tonumber(rec.failures) or 0) + 1, nil
  local remaining = (tonumber(rec.retries) or tonumber(retries) or DEFAULT_RETRIES) - rec.failures
  delay = tonumber(delay) or 0
  if moves.is_once(rec) then remaining = -1 end
  if rec.persistent then remaining = math.max(remaining, 0) end
  if remaining < 0 then
    --     A failure without a message gets one. It is the first field of that name in what failure_json() makes.
    failure = string.gsub(failure, '"message":""', '"message":"it was to be tried again, and its retries are spent"', 1)
    fail_in(rec, group ~= "" and group or "failed-retries-" .. rec.queue, failure)
    return "=" .. digits(remaining)
  end
  store(P .. "failure:" .. rec.jid, failure)
  tally(rec.queue, "retries", 1)
  note(rec, "retried", { worker = worker, group = group ~= "" and group or nil })
  publish_job_event("job.retried", rec, { worker = worker, remaining = remaining })
  if rec.persistent and delay == 0 then
    lay_in_front(rec)
  elseif delay > 0 then
    if not rec.persistent then rec.turn = nil end
    moves.to_scheduled(rec, now + delay)
  else
    moves.to_waiting(rec)
  end
  return "=" .. digits(remaining)
end

function verbs.fail(rec, at)
  local group, failure, kind, data = unpack(ARGV, at, at + 3)
  moves.leave(rec)
  if kind ~= "" then stage.set_data(rec, kind, data) end
  fail_in(rec, group, failure)
  return "1"
end

function verbs.release(rec, at)
  local reason = ARGV[at + 1] ~= "" and ARGV[at + 1] or nil
  moves.leave(rec)
  if ARGV[at] == "1" then
    rec.interruptions, rec.unknown = (tonumber(rec.interruptions) or 0) + 1, nil
    tally(rec.queue, "interruptions", 1)
    note(rec, "released", { worker = worker, reason = reason })
    if moves.is_once(rec) then
      moves.fail_interrupted(rec, worker, reason)
      failed = failed + 1
      return "1"
    end
  else
    moves.was_not_started(rec)
  end
  publish_job_event("job.released", rec, { worker = worker, reason = reason })
  if ARGV[at + 2] ~= "" then
    moves.to_scheduled(rec, now + ARGV[at + 2])
  else
    moves.to_front(rec)
  end
  return "1"
end

verbs["return"] = function(rec)
  if not rec.persistent then return finish(rec, "") end
  spread(rec.queue, "run", now - (rec.popped or now))
  moves.leave(rec)
  note(rec, "returned", { worker = worker })
  publish_job_event("job.returned", rec, { worker = worker })
  lay_in_front(rec)
  return "1"
end

-- The handler waits for a signal, or for a time: it starts again then.
function verbs.suspend(rec, at)
  if rec.persistent or moves.is_once(rec) then return ENDLESS end
  local name = ARGV[at]
  local over = replay.begin_wait(rec, name, tonumber(ARGV[at + 1]))
  spread(rec.queue, "run", now - (rec.popped or now))
  moves.leave(rec)
  if not over then
    local message = "it has waited for a thousand signals or times: let it go on as another job"
    fail_in(rec, "too-many-waits", failure_of("too-many-waits", message, worker))
    return "1"
  end
  rec.begun, rec.unknown = 1, nil
  note(rec, "suspended", { worker = worker, signal = name })
  publish_job_event("job.suspended", rec, { worker = worker, signal = name })
  if over <= now then
    moves.to_front(rec)
  else
    moves.to_scheduled(rec, over)
    rec.waits_for = name
    place(P .. "workers-seen", worker, now) -- layout 1 knows no such wait: a way back that has begun must learn of it
  end
  return "1"
end

function verbs.died(rec, at)
  moves.leave(rec)
  local state = death.die(rec, ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2])
  if state == "waiting" then moves.to_front(rec) end
  if state == "failed" then failed = failed + 1 end
  return state
end

-- This worker does not know the job's klass. A peer that knows it gets the job. Without one the job waits for a newer
-- worker and comes back, up to a limit.
function verbs.unknown(rec, at)
  moves.leave(rec)
  moves.was_not_started(rec)
  if apart.is_for_others(label_of(rec), rec.queue, worker) then
    rec.unknown = nil
    apart.set(rec, worker)
    apart.note_lack(worker, rec.klass)
    return "waiting"
  end
  rec.unknown = tonumber(rec.unknown) or now
  if rec.persistent or now - rec.unknown < setting_ms("unknown-for", rec.queue) then
    if not rec.persistent then rec.turn = nil end
    --     The delay doubles the time waited so far: a newer worker that is just starting may know the klass.
    moves.to_scheduled(rec, now + math.min(ARGV[at], math.max(FIRST_UNKNOWN, now - rec.unknown)))
    return "scheduled"
  end
  local message = "no worker has a handler named " .. rec.klass
  fail_in(rec, "unknown-handler", failure_of("unknown-handler", message, worker))
  return "failed"
end

-- Return the shapes that data do not have, in a fixed order, with one more.
local function with_shape(shapes, shape)
  local all = { shape }
  for known in string.gmatch(shapes or "", "[^,]+") do
    if known ~= shape then all[#all + 1] = known end
  end
  table.sort(all)
  return table.concat(all, ",")
end

function verbs.misfit(rec, at)
  local shape, failure = ARGV[at], ARGV[at + 1]
  moves.leave(rec)
  rec.shapes = with_shape(rec.shapes, shape)
  if apart.is_for_others(label_of(rec), rec.queue, worker) then
    moves.was_not_started(rec)
    apart.set(rec, worker)
    apart.note_lack(worker, label_of(rec))
    return "waiting"
  end
  fail_in(rec, "broken", failure)
  return "failed"
end

-- Return why this call cannot do the work of an outcome's follow-ups: nothing may be refused once it has begun. `makes`
-- and `removes` count edges and tags; `before_last` those that all but the last follow-up remove.
local function why_too_much(makes, removes, before_last)
  if makes > edges.MOST_MADE or before_last >= MOST_REMOVED then return REFUSED end
  local made, removed = edges.made(), edges.undone() + tagging.undone()
  if made > 0 and made + makes > edges.MOST_MADE then return LATER end
  if removed > 0 and removes > 0 and removed + removes > MOST_REMOVED then return LATER end
end

-- Return where the follow-ups of an outcome end, which begin at `at`, and why they cannot all be put; nil if they can.
-- None may wait for itself, through those before it or through the job, which may go on to wait for some.
local function follow_ups(at, own_jid, own_parents)
  local why, new_parents, children = nil, {}, {}
  local makes, removes, before_last = #own_parents, 0, 0
  if #own_parents > 0 then
    new_parents[own_jid] = own_parents
    for _, parent in ipairs(own_parents) do children[parent] = 1 end
  end
  while ARGV[at] == "follow" do
    local queue, jid, options, after = stage.options_of(at + 1)
    local parents, known = lines_of(options.depends), read_job(jid)
    local former = new_parents[jid] or known and known.state == "depends" and edges.parents_of(jid) or {}
    makes, before_last = makes + #(options.depends and parents or former), removes
    removes = removes + #former + (known and options.tags and tagging.n_lost(known, lines_of(options.tags)) or 0)
    if #parents > 0 and not edges.fits(jid, parents, new_parents, children) then why = REFUSED end
    if options.batch and options.batch ~= (read_job(own_jid) or {}).batch then why = REFUSED end
    if not stage.has_room(queue) then why = why or TOO_MANY_QUEUES end
    if options.depends then new_parents[jid] = parents end
    at = after
  end
  edges.forget_visited()
  return at, why or why_too_much(makes, removes, before_last)
end

local function held_job(jid, owner)
  local rec = read_job(jid)
  return rec and rec.owner == owner and rec.state == "running" and rec
end

-- Return the answer to an outcome, and its job.
local function settle(verb, jid, token, at)
  local rec = held_job(jid, token .. ":" .. worker)
  if not rec then return STALE[verb] end
  return verbs[verb](rec, at), rec
end

local exchange = P .. "worker:" .. worker
local stored = number and redis.call("HMGET", exchange, "number", "settled", "answers")
if stored and tonumber(stored[2]) == number then return stored[3] end
local late = stored and number <= (tonumber(stored[1]) or -1)

-- Completions that the quick path has left. Each says only its result, if it has one.
local n, at = tonumber(ARGV[4]), 5
if n > 0 then
  local results = {}
  at = 5 + 2 * n
  at = at + 1 + 3 * ARGV[at]
  for i = at + 1, at + 2 * ARGV[at], 2 do results[tonumber(ARGV[i])] = ARGV[i + 1] end
  at = at + 1 + 2 * ARGV[at]
  read_ahead({ unpack(ARGV, 5, 4 + n) })
  for i = 1, n do
    local rec = not late and held_job(ARGV[4 + i], string.match(ARGV[4 + n + i], "^%d+") .. ":" .. worker)
    answers[i] = not rec and "0" or rec.persistent and ENDLESS or finish(rec, results[i] or "")
  end
end
local has_room = true -- to end batches, and to tell other programs
while at <= #ARGV do
  local verb = ARGV[at]
  local following = at + 3 + ARGUMENTS[verb]
  local after, why = following, nil
  if ARGV[following] == "follow" then
    after, why = follow_ups(following, ARGV[at + 1], verb == "advance" and lines_of(ARGV[at + 7]) or {})
  end
  local answer, rec = STALE[verb], nil
  if late then
    -- another exchange came first
  elseif not has_room then
    answer = LATER
  elseif why and held_job(ARGV[at + 1], ARGV[at + 2] .. ":" .. worker) then
    answer = why
  else
    answer, rec = settle(verb, ARGV[at + 1], ARGV[at + 2], at + 3)
  end
  if answer ~= STALE[verb] and not WITHOUT_EFFECT[answer] then
    while following < after do following = select(2, stage.put_one(following + 1, true)) end
  end
  if rec then has_room = not (rec.batch and batches.evaluate()) and moves.told_bytes < moves.MOST_TOLD end
  answers[#answers + 1], at = answer, after
end
local reply = table.concat(answers, ",")
if late then return reply end

local most = math.min(2 * #answers + 16, 1000)
if completed > 0 then retention.prune_completed(completed, most) end
if failed > 0 then retention.prune_failed(failed, math.min(most, MOST_PRUNED)) end
if stored and (stored[1] or number <= 1) then -- else the worker was deregistered
  set_fields({ exchange, "number", number, "settled", number, "answers", reply })
  expire(exchange, setting_ms("max-worker-age"))
end
commit()
return reply
