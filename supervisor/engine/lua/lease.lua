#!lua flags=allow-oom
-- lease.lua — give a worker the next jobs of its queues.
--
-- Called by: leasing.lease (supervisor/engine/commands/leasing.py)
-- Holds:     INV-3 tokens only grow; INV-4 and INV-6 taking over a lost worker's job counts a death if it had started
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   number of the exchange; "" = none
-- ARGV[4]   count, the most jobs to give, 0 to 1000; 0 only passes a wake-up on
-- ARGV[5]   starting: so many of them, from the first on, start at once
-- ARGV[6]   ttl of the leases, ms; "" = the queue's heartbeat
-- ARGV[7]   "1" if jobs of lost workers may be taken over
-- ARGV[8]   order: strict, round-robin, random or weighted
-- ARGV[9]   seed of the random order, 0 to 2^31
-- ARGV[10]  "1" if a wake-up key has called for this lease; "2" if it was sent behind a wait for wake-up keys: other
--           exchanges of this worker may have had higher numbers meanwhile
-- ARGV[11]  klasses whose jobs this worker never starts twice, a line each
-- ARGV[12..] queue, weight; each queue once
--
-- Returns   array: now in ms; when to ask again in ms, 0 = unknown (or there may be more jobs now); token of the first
--           job, the next ones count up; due cron recurrences, each an array jid, cron, tz, time in ms, backlog; number
--           of the last request to this worker to serve other queues; an array of queues, each followed by the expiry
--           in ms of its leases; an array of the jids; an array that has for each job
--           its dense record as it was before (include/dense.lua); or an array of that and its payload, if that lies
--           beside; or, of a job with a full record, an array klass, queue, data, for how many ms it could have been
--           leased, and the rest: nil, or an array priority, retries, timeout, max_deaths, kind of data (nil = json,
--           "1" = bytes, "entry"), failures, deaths, interruptions, tags, lane, marks ("p" = persistent, "o" = at most
--           once, "l" = it has a slot of a limit, "w" = a worker was lost with it, and may just have started it), its
--           checkpoint as JSON, its trace, how many bytes of signals, waits and steps it has: the caller reads
--           replay:<jid> by HGETALL.
--           In place of large data is its size, an integer: the caller reads data:<jid> by MGET. After either it reads,
--           by ZRANGEBYSCORE, which jobs held:<worker> has under these tokens. With another token the lease is lost,
--           and what was read is of a later stage.
--           A number below the worker's last one, or behind a wait below that of its last resume, gets no job: it
--           comes from a dead connection.
--           If an entry of another program raises an error, the entry fails and this call gives no job.
-- Errors    DEREGISTERED if a worker that had a number is unknown; REFUSED for a token of 2^52 or more, or of the
--           next shard. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include this_layout
--- @include clock
--- @include served
--- @include quick_lease
--- @include picking
--- @include turns
--- @rest
local worker, number = ARGV[2], tonumber(ARGV[3])
local count, starting, ttl = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local order, exchange = ARGV[8], P .. "worker:" .. worker

local request_number = 0
if number then
  local last = redis.call("HMGET", exchange, ARGV[10] == "2" and "since" or "number", "wish")
  local last_number = tonumber(last[1])
  request_number = tonumber(last[2]) or 0
  if last_number and number < last_number then return { now, 0, 0, {}, request_number, {}, {}, {} } end
  if not last_number and number > 1 then refuse("DEREGISTERED", "worker " .. worker .. " is not known") end
end

picking.worker, picking.takeover = worker, ARGV[7] == "1"
local taken, left, passed = picking.taken, picking.left, {}

local queues, weights = served, {}
for i, place_of_it in ipairs(places) do weights[i] = tonumber(ARGV[11 + 2 * place_of_it]) end
picking.soonest = first_of_quiet

-- Return whether a lease of many queues that is full can pass a queue over: a worker is woken for it already.
local function is_called(queue) return are_many and redis.call("LLEN", P .. "bell:" .. queue) > 0 end

-- Return how many of the queues looked at come up to this one; 0 if it is none of this worker's.
local function served_up_to(name)
  if not name then return 0 end
  local n = 0
  for i = 12, #ARGV, 2 do
    if places[n + 1] == (i - 10) / 2 then n = n + 1 end
    if ARGV[i] == name then return n end
  end
  return 0
end

-- Run one round of so many turns. Each queue gives the jobs of its turns, added to `in_turn` in the order of the turns.
-- Return the queue of the last turn, and whether some turns were not used, so that others can have them.
local function serve_round(available, n_turns, last, in_turn, is_first)
  local wanted, by_queue, has_more_turns = {}, {}, false
  local sequence, to_visit = turns.take(order, queues, available, weights, n_turns, last), {}
  for _, i in ipairs(sequence) do
    if not wanted[i] then wanted[i], by_queue[i], to_visit[#to_visit + 1] = 0, {}, i end
    wanted[i] = wanted[i] + 1
  end
  for i in ipairs(is_first and queues or {}) do
    if not wanted[i] then wanted[i], by_queue[i], to_visit[#to_visit + 1] = 0, {}, i end
  end
  --   With more turns than room each queue has one: who comes next is decided by the next round.
  local most_each = n_turns > count - #taken and 1 or count
  for _, i in ipairs(to_visit) do
    local before, most = #taken, math.min(wanted[i], most_each, count - #taken)
    available[i] = available[i] + wanted[i] - most
    if is_first or most > 0 then picking.serve(queues[i], most, count) end
    for j = before + 1, #taken do table.insert(by_queue[i], taken[j]) end
    if #taken - before < most then available[i] = 0 end
    has_more_turns = has_more_turns or #taken - before < wanted[i]
  end
  for _, i in ipairs(sequence) do
    local job = table.remove(by_queue[i], 1)
    if job then
      in_turn[#in_turn + 1] = job
      last = i
    end
  end
  return last, has_more_turns
end

local function serve_in_turns()
  local available, in_turn = {}, {}
  local cursor = order == "round-robin" and redis.call("HGET", exchange, "cursor")
  local last = served_up_to(cursor)
  for i, queue in ipairs(queues) do
    available[i] = math.min(count, turns.available(queue, picking.takeover))
  end
  --   A round that gives nothing is followed by one of twice as many turns: if none of a thousand queues has a job that
  --   may start, ten rounds tell it.
  local is_first, again, n_turns = true, true, count
  while again and (is_first or #taken < count) and not picking.capped and not picking.spent do
    local before = #taken
    last, again = serve_round(available, n_turns, last, in_turn, is_first)
    is_first, n_turns = false, #taken == before and 2 * n_turns or count - #taken
  end
  taken, cursor = in_turn, queues[last]
  if order == "round-robin" and #taken > 0 then
    set_fields({ exchange, "cursor", cursor })
    expire(exchange, setting_ms("max-worker-age"))
  end
end

local function serve_all()
  if order ~= "strict" and #ARGV > 13 then return serve_in_turns() end
  for _, queue in ipairs(queues) do
    passed[queue] = (#taken >= count or picking.capped) and is_called(queue)
    if not passed[queue] then picking.serve(queue, count - #taken, count) end
  end
end

math.randomseed(tonumber(ARGV[9]))
local is_served, problem = pcall(serve_all)
if not is_served then
  entries.handle_error(problem)
  return { now, now, 0, {}, request_number, {}, {}, {} }
end

local expiries, ends = {}, {}
local function expiry_of(queue)
  if not expiries[queue] then
    expiries[queue] = now + (ttl or setting_ms("heartbeat", queue))
    ends[#ends + 1] = queue
    ends[#ends + 1] = expiries[queue]
  end
  return expiries[queue]
end

local never_twice = {}
for _, klass in ipairs(lines_of(ARGV[11])) do never_twice[klass] = true end

local function marks_of(rec)
  local marks = (rec.persistent and "p" or "") .. (rec.once == "1" and "o" or "") .. (rec.limit and "l" or "")
    .. (rec.lost and "w" or "")
  return marks ~= "" and marks
end

local tags_of = tagging.texts_of(taken)

-- Return what is said of a job with a full record.
local function row_of(rec, data)
  local tags, marks, rest = rec.tagged and (tags_of[rec.jid] or "") or false, marks_of(rec), false
  --   Data of a foreign type counts as missing.
  local saved = rec.saved and redis.call("MGET", P .. "saved:" .. rec.jid)[1]
  local row = {
    rec.priority or false, rec.retries or false, rec.timeout or false, rec.max_deaths or false, rec.bytes or false,
    rec.failures or false, rec.deaths or false, rec.interruptions or false, tags, rec.lane or false, marks,
    saved or false, rec.trace or false, rec.replay or false,
    rec.batch or false,
  }
  for _, value in ipairs(row) do rest = rest or value and row end
  local waited = math.max(now - (rec.ready or rec.since or rec.put), 0) -- since it was due, came back, or was put
  return { rec.klass, rec.queue, data, waited, rest }
end

local first_token, jids, rows = 0, {}, {}
local sizes = {}
for i, rec in ipairs(taken) do jids[i], sizes[i] = rec.jid, tonumber(rec.size) or 0 end
local data = payloads_of(sizes, function(near)
  local wanted = {}
  for i, at in ipairs(near) do wanted[i] = jids[at] end
  return all_data_of(wanted)
end)

local LAST_TOKEN = layout.last_token or 2 ^ 52 - 1 -- the score of a lease has a half, too

local function give(i, rec)
  local token = raise("token", 1)
  if token > LAST_TOKEN then
    refuse("REFUSED", "the token of this lease would be above " .. digits(LAST_TOKEN) .. ", the last one that"
      .. " it may have: raise no counter by hand, and move the jobs to a new namespace")
  end
  if i == 1 then first_token = token end
  place(queue_key(rec.queue, "running"), rec.jid, expiry_of(rec.queue))
  place(P .. "held:" .. worker, rec.jid, token)
  local text = dense_as_read(rec)
  rec.state, rec.owner, rec.popped, rec.aside = "running", digits(token) .. ":" .. worker, now, nil
  rec.started = i <= starting and 1 or nil
  if never_twice[rec.klass] and not rec.persistent then rec.once = rec.once or "1" end
  if rec.limit then limits.hold(rec, token) end
  publish_job_event("lease.granted", rec, { worker = worker, token = token })
  if not text or not dense.can_hold(rec) then
    rows[i] = row_of(rec, data[i])
  else
    rows[i] = rec.size and { text, data[i] } or text
  end
end

for i, rec in ipairs(taken) do give(i, rec) end

local full = #taken >= count or picking.capped

-- A worker that was woken, or has parked jobs, and is full now may be the only one that knows when there will be more
-- jobs. The others wait, but not for ever.
local function is_near(queue)
  local first = math.min(picking.first_score(queue, "scheduled", now), picking.first_score(queue, "recurring", now))
  if #first_members(queue_key(queue, "limits"), 1) > 0 then first = math.min(first, limits.next_check(queue)) end
  return first <= now + LONGEST_WAIT
end

-- Note a queue in which nothing lies but what is to come at a known time.
local function note_quiet(queue)
  if not redis.call("ZSCORE", P .. "queues", queue) then return end
  for _, part in ipairs({ "front", "waiting", "running", "lanes", "limits", "klasses" }) do
    if #first_members(queue_key(queue, part), 1) > 0 then return end
  end
  if redis.call("LLEN", P .. "in:" .. queue) > 0 then return end
  local first = NEVER
  for _, part in ipairs({ "scheduled", "recurring" }) do
    first = math.min(first, tonumber(head_of(queue_key(queue, part), 1)[2]) or NEVER)
  end
  if first > now then place(P .. "quiet", queue, first) end
end

for _, queue in ipairs(queues) do
  local may_be_near = full and not passed[queue] and (ARGV[10] ~= "" or picking.timed[queue])
  if left[queue] or may_be_near and is_near(queue) then
    wake(queue)
  elseif not full and not picking.more then
    clear_wakeup(queue)
    if are_many and wakeups[queue] == false then note_quiet(queue) end
  end
end
local soonest = picking.soonest
if full or soonest == math.huge then soonest = 0 end
if picking.capped or picking.more and not full then soonest = now end

place(P .. "workers-seen", worker, now)
if number then expire(exchange, setting_ms("max-worker-age")) end
commit()
return { now, soonest, first_token, picking.due_crons, request_number, ends, jids, rows }
