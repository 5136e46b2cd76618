-- limits.lua: how many jobs of a limit may run, and start, over all queues. A slot belongs to a lease: it is taken and
-- given back with it, however the lease ends. A job without room is parked under its limit, in the line of its queue
-- and lane, until something frees room: then a lease of that queue puts it back into its place. A line of jobs with
-- several limits stands under one that is full, and goes as a whole to the next one that it finds full.
--- @module
--- @include clock
--- @include fair
--- @include lines
--- @include moves
--- @include parked
--- @include pauses
local BY_LIMIT = 1 -- parked.lua
limits.HELD = 2 ^ 53 -- "when a slot is free": no time is known
local KEYS_A_LEASE = 16
-- One call marks, or forgets, so many pairs of a limit and a queue. A sweep finds those that are not marked.
local AT_ONCE = 1000
local pairs_left = AT_ONCE
local starts_left = 640000 -- that one call may search: 10,000 take up to 1 ms
-- A marked limit is due at any time, the one that was marked first before the others.
local MARKED = -2 ^ 52
-- For queries: lanes read per limit and queue, and calls of Redis that one script makes for parked jobs. Beyond them
-- jobs count as parked.
local LANES, CALLS = 100, 20000
local known, marked, rooms, calls_left = {}, {}, {}, CALLS

local function index_of(key, queue) return lines.index("limited:" .. key, queue) end

function limits.know(key, running, starts, per)
  local held = redis.call("ZCARD", P .. "holders:" .. key)
  known[key] = { running = running, starts = starts, per = per, started = 0, undone = 0, held = held }
end

-- A limit has changed: leases of all queues with parked jobs must examine them.
function limits.set(key, running, starts, per)
  limits.know(key, running, starts, per)
  limits.mark_for_check(key)
end

-- The server expires keys by its own clock. An injected clock may be slower, so starts are kept for an hour.
local INJECTED_TTL = tonumber(ARGV[1]) and 3600000 or 0

local function limit_of(key)
  local one = known[key]
  if one then return one end
  local batch = pauses.batch_of(key)
  if batch then
    limits.know(key, pauses.over(batch) == batch and 0 or nil)
    return known[key]
  end
  local set = redis.call("HMGET", P .. "limit:" .. key, "running", "starts", "per")
  limits.know(key, tonumber(set[1] or nil), tonumber(set[2] or nil), tonumber(set[3] or nil))
  return known[key]
end

-- Return whether one more job may start, beside `more` others; if not, when to ask again.
function limits.room(key, more)
  local one = limit_of(key)
  if one.running and one.held + more >= one.running then return false, limits.HELD end
  if not one.starts then return true end
  --   The start so many starts ago must be older than the period of the rate.
  local back = one.starts - one.started - more
  if back <= 0 then return false, now + one.per end
  local before = tonumber(redis.call("LINDEX", P .. "starts:" .. key, -back - one.undone) or nil)
  --   A time further ahead comes from a clock that has gone back.
  if before and before > now - one.per and before < now + one.per then return false, before + one.per end
  return true
end

-- Return the first of some limits without room beside what `taken` says of each, and when to ask again; nil if all
-- have.
local function first_full(keys, taken)
  for _, key in ipairs(keys) do
    local is_free, when = limits.room(key, taken[key] or 0)
    if not is_free then return key, when end
  end
end

-- Take a slot in each limit of a job that is being leased; `hold` names the token. If one has no room, take none, and
-- return it, and when to ask again. The pause of a batch is as a limit without room.
function limits.take(rec)
  local paused = rec.batch and pauses.over(rec.batch)
  if paused then return pauses.key_of(paused), limits.HELD end
  local keys = limits_in(rec.limit)
  local full, when = first_full(keys, {})
  if full then return full, when end
  for _, key in ipairs(keys) do
    local one = limit_of(key)
    one.held, one.started = one.held + 1, one.started + 1
  end
end

function limits.hold(rec, token)
  for _, key in ipairs(limits_in(rec.limit)) do
    local one = limit_of(key)
    place(P .. "holders:" .. key, rec.jid, token)
    if one.starts then push(P .. "starts:" .. key, now, one.starts, math.max(one.per, INJECTED_TTL)) end
  end
end

-- Give back the slots of a lease that is over.
function limits.give_back(rec)
  for _, key in ipairs(limits_in(rec.limit)) do
    local one = limit_of(key)
    one.held = one.held - 1
    place(P .. "holders:" .. key, rec.jid, false)
    limits.mark_for_check(key)
  end
end

local function take_back_start_of(key, ago)
  local one = limit_of(key)
  if not one.starts or ago >= one.per or starts_left < one.starts then return end
  starts_left, one.undone = starts_left - one.starts, one.undone + 1
  strike(P .. "starts:" .. key, now - ago)
  limits.mark_for_check(key)
end

-- Take back the start of a job that was leased so many ms ago, and has not started. One that no longer counts stays.
-- So do those beyond what one call may search for, which count until their time is over.
function limits.take_back_start(rec, ago)
  for _, key in ipairs(limits_in(rec.limit)) do take_back_start_of(key, ago) end
end

-- There may be room: the leases of the queues with parked jobs must examine them, at once or at the time. One that is
-- due keeps its place. A limit leaves half of what is left to others, which may have few queues.
function limits.mark_for_check(key)
  local room, later = limits.room(key, 0)
  local when = room and MARKED + now or later
  if marked[key] and marked[key] <= when or pairs_left == 0 then return end
  marked[key] = when
  local most = math.ceil(pairs_left / 2)
  local queues = first_members(P .. "limited:" .. key, most)
  pairs_left = pairs_left - #queues
  for _, queue in ipairs(queues) do
    local checks = queue_key(queue, "limits")
    if not room or (score_of(checks, key) or math.huge) > now then place(checks, key, when) end
    if #queues == most then place(P .. "limited:" .. key, queue, now) end -- the others are the first next time
    if when < limits.HELD then moves.wake_unless_served(queue) end
  end
end

-- Mark limits of a queue that have room and were not marked, because a call had too many to mark. Each call looks at
-- others, drawn by chance.
function limits.find_room(queue)
  local checks = queue_key(queue, "limits")
  local held = redis.call("ZCOUNT", checks, limits.HELD, limits.HELD)
  if held == 0 then return end
  local from, at_most = math.random(0, held - 1), math.min(held, KEYS_A_LEASE)
  local function look(first, n)
    for _, key in ipairs(redis.call("ZRANGEBYSCORE", checks, limits.HELD, "+inf", "LIMIT", first, n)) do
      if limits.room(key, 0) then
        place(checks, key, MARKED + now)
        moves.wake_unless_served(queue)
      end
    end
  end
  look(from, at_most)
  if from + at_most > held then look(0, from + at_most - held) end
end

-- A job that had come back into its place for a slot does not take it: others can have what there is.
function limits.offer_to_others(rec)
  for _, key in ipairs(limits_in(rec.limit)) do
    local is_free, when = limits.room(key, 0)
    if is_free or when < limits.HELD then limits.mark_for_check(key) end
  end
end

-- From now on a line stands under a limit that has no room until then.
local function stand(line, queue, key, when)
  marked[key] = nil
  fair.join(index_of(key, queue), line)
  place(P .. "limited:" .. key, queue, now)
  place(queue_key(queue, "limits"), key, when)
end

-- Return the limit under which the line of a job stands.
local function stands_under(rec)
  local keys = limits_in(parked_under(rec))
  for i = 1, #keys - 1 do
    if score_of(index_of(keys[i], rec.queue), line_named(rec)) then return keys[i] end
  end
  return keys[#keys]
end

-- A job has left its place: this one of its limits, or its batch, has no room until then.
function limits.park(rec, full, when)
  rec.parked = pauses.batch_of(full) and full or BY_LIMIT
  local line, queue, before = line_named(rec), rec.queue, stands_under(rec)
  if before ~= full then place(index_of(before, queue), line, false) end
  place(queue_key(queue, "parked"), rec.jid, now)
  lines.put(rec)
  stand(line, queue, full, when)
  if full ~= rec.limit then limits.offer_to_others(rec) end
end

local function come_back(rec)
  lines.remove(rec)
  rec.parked = nil
  place(queue_key(rec.queue, "parked"), rec.jid, false)
end

-- Take a job out of its line, and the line out of the indexes if it is empty then.
function limits.clear(rec)
  local key, line, queue = stands_under(rec), line_named(rec), rec.queue
  local name = "limited:" .. key
  come_back(rec)
  if #first_members(P .. line_in(name, queue, line), 1) > 0 then return end
  place(index_of(key, queue), line, false)
  if not lines.is_empty(name, queue) then return end
  place(P .. name, queue, false)
  place(queue_key(queue, "limits"), key, false)
end

-- The next lease of the queue examines the rest.
function limits.unpark(rec)
  place(queue_key(rec.queue, "limits"), stands_under(rec), 0)
  come_back(rec)
end

-- No job is parked in a queue any more: remove it from its limits. Return whether a call can remove it from all.
function limits.forget(queue)
  if pairs_left == 0 then return false end
  local checks = queue_key(queue, "limits")
  local keys = redis.call("ZRANGE", checks, 0, pairs_left - 1)
  for _, key in ipairs(keys) do
    place(checks, key, false)
    place(P .. "limited:" .. key, queue, false)
    drop(index_of(key, queue))
  end
  pairs_left = pairs_left - #keys
  return pairs_left > 0
end

-- The leases of a queue must examine what is parked there.
function limits.mark_all_for_check(queue)
  local checks = queue_key(queue, "limits")
  for _, key in ipairs(redis.call("ZRANGEBYSCORE", checks, "(" .. digits(now), "+inf", "LIMIT", 0, AT_ONCE)) do
    place(checks, key, MARKED + now)
  end
end

-- Return whether it is time to examine. A time further ahead than any start comes from a clock that has gone back.
local function is_due(key, when)
  return when <= now or when < limits.HELD and when > now + 2 * (limit_of(key).per or 0)
end

-- Return when a lease of a queue must examine its parked jobs; no time if only a free slot helps.
function limits.next_check(queue)
  local first = head_of(queue_key(queue, "limits"), 1)
  local when = tonumber(first[2])
  if not when or when == limits.HELD then return math.huge end
  return is_due(first[1], when) and now or when
end

-- Give parked jobs of a queue the room that there is: up to `most` jobs come back into their places. Return their
-- jids.
function limits.bring_back(queue, most)
  local checks, back, taken = queue_key(queue, "limits"), {}, {}
  local function take_out(rec)
    back[#back + 1] = rec.jid
    for _, key in ipairs(limits_in(rec.limit)) do taken[key] = (taken[key] or 0) + 1 end
    come_back(rec)
  end
  local function sends_on(line)
    local _, several = parts_of(line)
    local full, when = first_full(limits_in(several), taken)
    if full then stand(line, queue, full, when) end
    return full
  end
  local first = head_of(checks, KEYS_A_LEASE)
  for i = 1, #first, 2 do
    if #back >= most or not is_due(first[i], tonumber(first[i + 1])) then break end
    local key = first[i]
    local gate = {
      is_open = function() return limits.room(key, taken[key] or 0) end, sends_on = sends_on, take_out = take_out,
    }
    local _, when = lines.put_back("limited:" .. key, queue, most - #back, gate)
    if when == 0 then when = MARKED + now end -- behind those that are due already
    marked[key] = nil
    place(checks, key, when or false)
    if not when then place(P .. "limited:" .. key, queue, false) end
  end
  return back
end

-- Return how many jobs of a limit could start now, for queries: nothing is planned between two calls.
local function room_of(key)
  if rooms[key] then return rooms[key] end
  local one = limit_of(key)
  local least, most = 0, math.min(2 ^ 20, one.starts or math.huge, one.running or math.huge)
  calls_left = calls_left - 3
  while least < most do
    local n = math.ceil((least + most) / 2)
    calls_left = calls_left - 1
    if limits.room(key, n - 1) then least = n else most = n - 1 end
  end
  rooms[key] = least
  return least
end

-- Return how many jobs of one limit parked in a queue could start now; add the first of each lane to `heads`. Return
-- nil if some of them have other limits, too.
local function could_start_of(key, queue, heads)
  local room, lying, index = room_of(key), 0, index_of(key, queue)
  calls_left = calls_left - 1
  for _, lane in ipairs(room > 0 and redis.call("ZRANGE", index, 0, LANES - 1) or {}) do
    if select(2, parts_of(lane)) then return nil end
    if lying >= room or calls_left <= 0 then break end
    calls_left = calls_left - 3
    local head = not lanes.is_paused(queue, lane) and redis.call("ZRANGE", index .. "\n" .. lane, 0, 0)[1]
    if head then
      heads[#heads + 1] = string.sub(head, 14)
      lying = lying + redis.call("ZCARD", index .. "\n" .. lane)
    end
  end
  return math.min(room, lying)
end

-- Return how many parked jobs of a queue could start now, for queries: what bring_back() would put back; and the first
-- of each of its lanes. Return nil if that cannot be told from the lengths of lines.
function limits.could_start(queue)
  local n, heads = 0, {}
  local first = calls_left > 0 and head_of(queue_key(queue, "limits"), KEYS_A_LEASE) or {}
  for i = 1, #first, 2 do
    if calls_left <= 0 or not is_due(first[i], tonumber(first[i + 1])) then break end
    local of_key = could_start_of(first[i], queue, heads)
    if not of_key then return nil end
    n = n + of_key
  end
  return n, heads
end
