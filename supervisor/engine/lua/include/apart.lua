-- apart.lua: jobs that one worker cannot take, while a live peer may: it has no handler for their klass, or their data
-- do not have the shape that its handler takes. They lie apart by labels (parked.lua), uncounted, and only workers that
-- may take them lease them. They go back into their places when no such peer lives any more, or while a worker lives
-- that does not know this mechanism.
--- @module
--- @include clock
--- @include config
--- @include events
--- @include fair
--- @include lines
--- @include lives
--- @include parked
local WORKERS, HINTED, READS = 1000, 100, 2000 -- the most that are read, told of a job, and queries of one script
local KLASSES, MOST_LACKED = 1000, 200 -- of a queue, and of a worker
local living, is_mixed, peers, reads, hinted, lacked = nil, nil, {}, 0, {}, {}

local function klasses_key(queue) return queue_key(queue, "klasses") end
function apart.klass_of(label) return string.match(label, "^[^\t]*") end

-- Return whether jobs of a label may have the shape that a worker's handler takes.
local function fits(label, worker)
  local shapes = string.match(label, "\t(.*)$")
  if not shapes then return true end
  local shape = redis.call("HGET", P .. "shapes:" .. worker, apart.klass_of(label))
  return shape and not string.find("," .. shapes .. ",", "," .. shape .. ",", 1, true)
end

local function living_workers()
  living = living or redis.call(
    "ZREVRANGEBYSCORE", P .. "workers-seen", "+inf", now - LIVES, "WITHSCORES", "LIMIT", 0, WORKERS)
  return living
end

-- Return whether a worker lives that numbers its exchanges and is about to report its skills. Until then its klasses
-- are unknown.
local function has_worker_without_skills()
  if is_mixed ~= nil then return is_mixed end
  is_mixed = false
  local found = living_workers()
  for i = 1, #found, 2 do
    is_mixed = is_mixed or redis.call("EXISTS", P .. "skills:" .. found[i]) == 0
      and redis.call("HEXISTS", P .. "worker:" .. found[i], "number") == 1
  end
  return is_mixed
end

-- Return which peer lives, may take the jobs of a label and serves the queue; and until when that is so, if known. The
-- labels beyond what one script reads count as unknown to all workers.
local function peers_of(label, queue, worker)
  local key, klass = label .. "\n" .. queue, apart.klass_of(label)
  if peers[key] then return peers[key] end
  local found, workers = { until_when = 0 }, has_worker_without_skills() and {} or living_workers()
  for i = 1, #workers, 2 do
    if reads == READS or #found == HINTED then break end
    reads = reads + 1
    local has = workers[i] ~= worker
      and redis.call("ZMSCORE", P .. "skills:" .. workers[i], "klass:" .. klass, "queue:" .. queue)
    if has and has[1] and has[2] and fits(label, workers[i]) then
      found[#found + 1] = workers[i]
      found.until_when = math.max(found.until_when, tonumber(workers[i + 1]) + LIVES)
    end
  end
  peers[key] = found
  return found
end

-- Return whether jobs of a label are left to other workers.
function apart.is_for_others(label, queue, worker)
  if #peers_of(label, queue, worker) == 0 then return false end
  return score_of(klasses_key(queue), label) ~= nil or redis.call("ZCARD", klasses_key(queue)) < KLASSES
end

-- Put a job that has left its place apart, for workers other than `worker`. They get a hint by mail, because the
-- queue's wake-up key might wake one that cannot have it.
function apart.set(rec, worker)
  local label, queue = label_of(rec), rec.queue
  local found, key = peers_of(label, queue, worker), label .. "\n" .. queue
  rec.parked = BY_KLASS
  place(queue_key(queue, "apart"), rec.jid, now)
  place(klasses_key(queue), label, math.max(found.until_when, now + 1))
  lines.put(rec)
  fair.join(lines.index("apart:" .. label, queue), line_named(rec))
  if not hinted[key] then
    hinted[key] = true
    for _, name in ipairs(found) do hint(name, "klass") end
  end
end

function apart.take_out(rec)
  lines.remove(rec)
  rec.parked = nil
  place(queue_key(rec.queue, "apart"), rec.jid, false)
end

-- Return the klasses and labels that a worker is known to lack, as a set; nil if there are none.
function apart.lacks(worker)
  if lacked[worker] == nil then
    local names = lines_of(redis.call("HGET", P .. "worker:" .. worker, "lacks") or "")
    lacked[worker] = #names > 0 and { names = names } or false
    for _, klass in ipairs(names) do lacked[worker][klass] = true end
  end
  return lacked[worker] or nil
end

-- Return whether a worker that lacks these lacks the handler for a label.
function apart.is_lacked(known, label) return known[label] or known[apart.klass_of(label)] end

-- A worker has reported that it cannot take the jobs of a label: its leases leave them to others. A worker that has
-- reported other handlers since, after a reload, may have them again.
function apart.note_lack(worker, label)
  local known, klass = apart.lacks(worker) or { names = {} }, apart.klass_of(label)
  if known[label] or redis.call("HEXISTS", P .. "worker:" .. worker, "number") == 0 then return end
  local has = redis.call("ZSCORE", P .. "skills:" .. worker, "klass:" .. klass)
  if has and fits(label, worker) then return end
  known.names[#known.names + 1], known[label], lacked[worker] = label, true, known
  if #known.names > MOST_LACKED then known[table.remove(known.names, 1)] = nil end
  set_fields({ P .. "worker:" .. worker, "lacks", table.concat(known.names, "\n") })
end

-- Return the labels of the jobs that lie apart in a queue.
function apart.klasses(queue) return redis.call("ZRANGE", klasses_key(queue), 0, KLASSES - 1) end

-- Return whether it is time to check. A time so far ahead comes from a clock that has gone back.
local function is_due(when) return when <= now or when > now + 2 * LIVES end

-- Return when a lease must check whether a live worker may take what lies apart in a queue.
function apart.next_check(queue)
  local when = tonumber(head_of(klasses_key(queue), 1)[2]) or math.huge
  return when < math.huge and is_due(when) and now or when
end

-- Return whether a queue has jobs apart that a worker may have, or that must be checked.
function apart.has_some_for(queue, worker)
  if apart.next_check(queue) <= now then return true end
  local lacks = apart.lacks(worker)
  for _, label in ipairs(apart.klasses(queue)) do
    if not (lacks and apart.is_lacked(lacks, label)) then return true end
  end
  return false
end

local function always() return true end
local function never() return false end

-- Let jobs of a queue back into their places: up to `most` of each label that `worker` may have (nil: no worker asks),
-- or that no worker may take any more; `all` of them together. Return how many.
function apart.bring_back(queue, most, all, worker)
  local lacks, n = worker and (apart.lacks(worker) or {}), 0
  local found = redis.call("ZRANGE", klasses_key(queue), 0, KLASSES - 1, "WITHSCORES")
  for i = 1, #found, 2 do
    local label, when = found[i], tonumber(found[i + 1])
    local is_mine = lacks and not apart.is_lacked(lacks, label)
    if n < all and (is_mine or is_due(when)) then
      local others = is_mine and {} or peers_of(label, queue, worker)
      if #others > 0 then
        place(klasses_key(queue), label, others.until_when + 1)
      else
        local gate = { is_open = always, sends_on = never, take_out = apart.take_out, from_paused = not is_mine }
        local found_now, later = lines.put_back("apart:" .. label, queue, math.min(most, all - n), gate)
        n = n + found_now
        place(klasses_key(queue), label, later and (is_mine and when or 0) or false)
      end
    end
  end
  return n
end

-- A worker's report no longer holds. The next lease checks whether another worker may take what it has not `still`.
-- Its handlers may take other shapes from now on.
function apart.forget(worker, still)
  local key, had, queues = P .. "skills:" .. worker, {}, {}
  for _, skill in ipairs(redis.call("ZRANGE", key, 0, -1)) do
    local kind, name = string.match(skill, "^(%l+):(.*)$")
    if kind == "klass" then had[name] = true elseif kind == "queue" then queues[#queues + 1] = name end
  end
  for _, queue in ipairs(queues) do
    for _, label in ipairs(apart.klasses(queue)) do
      local klass = apart.klass_of(label)
      if had[klass] and not (still[klass] and label == klass) then
        place(klasses_key(queue), label, 0)
        wake(queue)
      end
    end
  end
  drop(key)
  drop(P .. "shapes:" .. worker)
end

-- No job lies apart in a queue any more.
function apart.forget_queue(queue)
  for _, label in ipairs(apart.klasses(queue)) do drop(lines.index("apart:" .. label, queue)) end
  drop(klasses_key(queue))
end
