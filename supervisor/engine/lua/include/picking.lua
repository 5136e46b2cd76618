-- picking.lua: which jobs a lease gives, and in which order. It reads 16 ids more than are wanted of each kind: a job
-- that may not start now leaves its place when it is met, and comes back when it may.
--- @include allowed
--- @include late
--- @include apart
--- @include leased
--- @module
local SPARE = 16
local MOST_BESIDE = 600 -- of all queues together: jobs that come to their places, and ids that are met and not given
local ELSEWHERE_MS = 25 -- for how long a persistent job that came back is left to other workers
local taken, left, due_crons, timed = {}, {}, {}, {}
local brought, freed = {}, {}
local limit, bytes, beside, has_missed, others, lacks = 0, 0, 0, false, nil, nil

-- `taken`: records of the jobs that the lease gives. `left`: queues that still have jobs to give. `soonest`: when there
-- will be more, if known. `capped`: the reply is full. `more`: some ids were not read. `spent`: this call does no more.
-- `timed`: queues with jobs parked until a time. The caller sets `worker` ("" = none), `takeover`, and `regardless`:
-- give only jobs that exist now, whatever holds the queue back.
picking.taken, picking.left, picking.due_crons = taken, left, due_crons
picking.soonest, picking.capped, picking.more, picking.spent, picking.timed = math.huge, false, false, false, timed

local function room() return #taken < limit and not picking.capped end

-- Return whether this call leaves the rest to the next one, which has less to read.
local function is_spent()
  if beside < MOST_BESIDE and moves.told_bytes < moves.MOST_TOLD then return false end
  picking.more, picking.spent = true, true
  return true
end

local function put_off_until(time) picking.soonest = math.min(picking.soonest, time) end

local function is_for_others(rec)
  local is_new = now >= tonumber(rec.since) and now < rec.since + ELSEWHERE_MS -- the clock may have gone back
  if rec.left ~= picking.worker or not is_new then return false end
  if others == nil then
    local itself = redis.call("ZSCORE", P .. "workers-seen", picking.worker) and 1 or 0
    others = redis.call("ZCARD", P .. "workers-seen") > itself
  end
  if others then put_off_until(rec.since + ELSEWHERE_MS) end
  return others
end

-- Return why a job with conditions does not start now: "gone" if it has left its place for that, "later" if it stays;
-- nil if it starts.
local function held_back(rec)
  if rec.expires and now >= rec.put + rec.expires and not has_started(rec) then
    moves.fail_expired(rec)
    return "gone"
  end
  if rec.persistent and rec.left and is_for_others(rec) then return "later" end
  if not rec.limit and not rec.batch then return nil end
  local full, when = limits.take(rec)
  if full then
    moves.step_out(rec)
    limits.park(rec, full, when)
    if when < limits.HELD then
      put_off_until(when)
      timed[rec.queue] = true
    end
    return "gone"
  end
end

-- Leave a job that this worker cannot take to one that may; nil if there is none.
local function leave_apart(queue, rec)
  if not apart.is_for_others(label_of(rec), queue, picking.worker) then return nil end
  moves.step_out(rec)
  apart.set(rec, picking.worker)
  if rec.limit then limits.offer_to_others(rec) end
  return "gone"
end

-- Add a job to the reply. Return "taken", "full" if its payload does not fit, "phantom" if its record names another
-- place, or what held_back() returns.
local function offer(queue, jid, in_front)
  local rec = read_job(jid)
  if not rec or not rec.klass or rec.state or rec.queue ~= queue or rec.parked then return "phantom" end
  local size = (tonumber(rec.size) or UNSIZED_BYTES) + (tonumber(rec.saved) or 0) + (tonumber(rec.replay) or 0)
  if #taken > 0 and bytes + size > ANSWER_BYTES then
    picking.capped = true
    return "full"
  end
  if in_front and rec.lane and lanes.is_paused(queue, rec.lane) then
    moves.set_aside(rec)
    if rec.limit then limits.offer_to_others(rec) end
    return "gone"
  end
  local verdict = lacks and apart.is_lacked(lacks, label_of(rec)) and leave_apart(queue, rec) or held_back(rec)
  if verdict then return verdict end
  bytes = bytes + size
  spread(queue, "wait", now - (rec.since or rec.put))
  taken[#taken + 1], moves.given[jid] = rec, true
  return "taken"
end

-- Read the dense records of the jobs that a walk meets at once.
local function read_members(members, first, skip)
  local jids = {}
  for i = first, #members do jids[#jids + 1] = string.sub(members[i], skip) end
  read_ahead(jids)
end

-- Take jobs from the head of one sorted set. `skip` is where the jid begins in a member.
local function walk(queue, key, skip)
  local passed, asked, has_read_more, some_went = 0, limit - #taken + 1, false, false
  while true do
    local members, missed = first_members(key, passed + asked), false
    local all = #members < passed + asked
    read_members(members, passed + 1, skip)
    for i = passed + 1, #members do
      if not room() then
        left[queue] = true
        return
      end
      if has_missed and is_spent() then return end
      local member = members[i]
      local jid = string.sub(member, skip)
      local verdict = offer(queue, jid, skip == 1)
      if verdict == "full" then
        left[queue] = true
        return
      elseif verdict == "taken" then
        place(key, member, false)
      else
        missed, has_missed, beside = true, true, beside + 1
        if verdict == "phantom" then moves.phantom(key, member, jid) end
        if verdict == "later" then passed = passed + 1 else some_went = true end
      end
    end
    if not missed or all then return end
    if has_read_more then
      picking.more = picking.more or some_went
      return
    end
    asked, has_read_more = SPARE - 1, true
  end
end

-- Take jobs from the lanes of a queue, each in its turn.
local function serve_lanes(queue)
  local wanted, reads = limit - #taken, limit - #taken + SPARE
  local function weight_of(lane) return lanes.weight(queue, lane) end
  local function key_of(lane) return lanes.line(queue, lane) end
  local function visit(lane, member)
    if not room() then return "stop" end
    if reads == 0 then
      picking.more = true
      return "stop"
    end
    if has_missed and is_spent() then return "stop" end
    if not member then return "none" end
    reads = reads - 1
    local jid = string.sub(member, 14)
    local verdict = offer(queue, jid)
    if verdict == "full" then return "stop" end
    if verdict ~= "taken" then has_missed, beside = true, beside + 1 end
    if verdict == "later" then return "pass" end
    if verdict == "gone" then return "gone" end
    lanes.strike(queue, lane, member)
    if verdict == "taken" then return "turn" end
    place(P .. "phantoms", jid, now)
    return "again"
  end
  local more, others = fair.serve(lanes.index(queue), wanted, key_of, weight_of, visit)
  picking.more = picking.more or more
  if not room() and lanes.have_work(queue, others) then left[queue] = true end
end

-- Return the first of the times of a queue, or the first above a time.
local function first_score(queue, part, above)
  local key, found = queue_key(queue, part), nil
  if above then
    found = redis.call("ZRANGEBYSCORE", key, "(" .. above, "+inf", "LIMIT", 0, 1, "WITHSCORES")
  else
    found = redis.call("ZRANGE", key, 0, 0, "WITHSCORES")
  end
  return tonumber(found[2]) or math.huge
end

picking.first_score = first_score

-- Take up to `limit` jobs in all, from the front, then from the lanes.
local function take(queue, may_have_lanes)
  walk(queue, queue_key(queue, "front"), 1)
  if left[queue] then return end
  if may_have_lanes and lanes.in_use(queue) then
    serve_lanes(queue)
  else
    walk(queue, queue_key(queue, "waiting"), 14)
  end
end

-- Return what late.bring() can bring to its place in a queue now; nil if nothing.
local function find_arrivals(queue, paused, expired, due, spawns, has_more, most)
  local arrivals = { expired = expired, due = not paused and due }
  arrivals.spawns = not paused and spawns and not picking.regardless
  if has_more and not paused then
    arrivals.entries = not picking.regardless and redis.call("LLEN", P .. "in:" .. queue) > 0
    arrivals.limited = limits.next_check(queue) <= now
    arrivals.apart = apart.has_some_for(queue, picking.worker) and most
  end
  local has_any = expired or arrivals.due or arrivals.spawns or arrivals.entries or arrivals.limited or arrivals.apart
  return has_any and arrivals
end

-- Give up to `most` jobs of a queue; with 0 only find out whether there are some. `count` is how many are wanted of all
-- queues. Only the first visit to a queue in one call brings jobs to their places.
function picking.serve(queue, most, count)
  local grace, paused = setting_ms("grace", queue), not picking.regardless and setting("paused", queue) > 0
  local expiry = first_score(queue, "running")
  local due, spawns = first_score(queue, "scheduled"), first_score(queue, "recurring")
  local is_expired, is_due, spawns_now = picking.takeover and expiry + grace <= now, due <= now, spawns <= now
  local has_more = redis.call(
    "EXISTS", queue_key(queue, "lanes"), queue_key(queue, "limits"), queue_key(queue, "klasses"),
    P .. "in:" .. queue) > 0
  lacks = apart.lacks(picking.worker)
  local arrivals = find_arrivals(queue, paused, is_expired, is_due, spawns_now, has_more, most)
  if expiry <= now then death.announce_stalled(queue) end
  if most > 0 or paused and is_expired then
    left[queue] = nil
    if arrivals and not brought[queue] and not is_spent() then
      local more, n
      brought[queue] = true
      freed[queue], more, n = late.bring(queue, most + SPARE, MOST_BESIDE - beside, arrivals, due_crons, picking.worker)
      beside = beside + n
      picking.more = picking.more or more
      timed[queue] = arrivals.limited or nil
    end
    local may_start = picking.regardless and most or allowed(queue, most, freed[queue] or 0)
    limit = #taken + may_start
    take(queue, has_more or arrivals)
    --     No worker can fetch what is held back until the queue wakes one again.
    if may_start < most and not picking.capped then left[queue] = nil end
  else
    limit, left[queue] = #taken, not paused and arrivals and true
    take(queue, has_more)
    if not picking.regardless and allowed(queue, 1, 0) == 0 then left[queue] = nil end
  end
  if #taken >= count then return end
  if is_expired then expiry = first_score(queue, "running", now - grace) end
  if is_due then due = first_score(queue, "scheduled", now) end
  if spawns_now then spawns = first_score(queue, "recurring", now) end
  if not picking.takeover then expiry = math.max(expiry, now) end
  if not paused then
    put_off_until(math.min(due, spawns, nearest[queue] or math.huge))
    if has_more then put_off_until(math.max(math.min(limits.next_check(queue), apart.next_check(queue)), now)) end
  end
  put_off_until(expiry + grace)
end
