#!lua flags=allow-oom
-- check.lua — find inconsistencies in some keys, or in some members of a sorted set, and repair them on demand.
--
-- Called by: check.of_keys, check.of_members, check.of_lanes (supervisor/engine/commands/check.py)
-- Holds:     INV-1 a job lies where its record says, and nowhere else; INV-2 a job that can still run is made to run
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   "1" to repair, "" to read only (the script is then sent with flags=no-writes)
-- ARGV[3]   name of a sorted set whose members follow, or of a hash whose fields follow; "" if names of keys follow; or
--           "laned:" and a queue, whose lanes follow. Names are without the prefix.
-- ARGV[4..] members, fields, names or lanes; some may have gone since the scan
--
-- Returns   array: 1 if an obstacle was repaired first, and the same must be judged again; arrays of sets and of hashes
--           with too many members for one call; array of kind, subject, detail, what was done | "", four per
--           violation.
-- Errors    none for a foreign key of ours, which is a violation.

--- @include layout
if layout.state == "lost" then layout.state = "2" end -- this script restores the mark
--- @include this_layout
--- @include judge
--- @include judge_recurrence
--- @include judge_value
--- @include judge_batch
--- @include judge_mode
--- @include mend
--- @rest
local mending, set = ARGV[2] == "1", ARGV[3]

local MEMBERS = 100 -- read beside the keys themselves
local room, too_large = MEMBERS, { zset = {}, hash = {} }

-- The type that the first word of a name, or the last word of a queue's key, implies.
local TYPES = {
  job = "record", data = "string", failure = "string", result = "string", tags = "string", history = "list",
  dependencies = "zset", dependents = "zset", recur = "hash", recurdata = "string", recurtags = "string",
  worker = "hash", held = "zset", mail = "list", bell = "list", failed = "zset", tag = "zset", stats = "hash",
  histogram = "hash", lane = "zset", laned = "string", lanes = "hash", limit = "hash", holders = "zset",
  starts = "list", unique = "hash", ended = "list", progress = "string", saved = "string", ["in"] = "list",
  asks = "list", answer = "list", desired = "list", skills = "zset", shapes = "hash", parents = "string",
  readers = "zset", replay = "hash", keptresult = "string", keptfailure = "string", stream = "stream",
  batch = "hash", batchjobs = "zset", batchfailed = "zset", batchcalls = "hash",
  throttled = "list", bins = "string", recent = "string", course = "string", schema = "string", doorlists = "zset",
}
local WHOLE = {
  complete = "zset", failed = "zset", groups = "zset", queues = "zset", ["tag-counts"] = "zset",
  ["tracked-jobs"] = "zset", ["workers-seen"] = "zset", days = "zset", histograms = "zset", phantoms = "zset",
  untold = "zset", options = "hash", announced = "hash", config = "string", tags = "string", tracked = "string",
  workers = "string", token = "string", seq = "string", ["failed-dropped"] = "string", expiring = "zset",
  limits = "zset", cancelled = "zset", ["cancelled-by"] = "hash", dropped = "zset", idle = "zset",
  quiet = "zset", declared = "hash", doors = "hash", kept = "zset", batches = "zset", ["batches-open"] = "zset",
  ["batches-ended"] = "zset", audit = "list", unheard = "list",
}
-- The parts of a queue. A queue with jobs in one of the first must be known.
local PARTS = {
  waiting = "waiting", front = "front", running = "running", scheduled = "scheduled", depends = "depends",
  recurring = "recurring", parked = "parked", lanes = "lanes of a queue", limits = "limits of a queue",
  apart = "apart", klasses = "klasses of a queue",
}
-- The parts of a name of limited: and apart:, one a line.
local LINES = {
  limited = { "queues of a limit", "lanes of a limit", "parked lane" },
  apart = { nil, "lanes of a klass", "apart lane" },
}

-- Return the kind of a name, its subject and the type that it implies; nothing for an unknown name.
local function kind_of(name)
  if WHOLE[name] then return name, "", WHOLE[name] end
  local queue, part = string.match(name, "^queue:(.*):(%l+)$")
  if queue and PARTS[part] then return PARTS[part], queue, "zset" end
  local word, rest = string.match(name, "^(%l+):(.*)$")
  if LINES[word] then
    local kind = LINES[word][1 + select(2, string.gsub(rest, "\n", "\n"))]
    return kind, rest, kind and "zset"
  end
  if TYPES[word] then return word .. ":", rest, TYPES[word] end
end

-- Members of sorted sets.

local STRAY = {
  ["running"] = "lease-without-job", ["held:"] = "lease-without-job", ["tag:"] = "tag-without-job",
  ["holders:"] = "leaked-slot",
}
local BY_NUMBER = { waiting = true, scheduled = true, ["lane:"] = true, ["parked lane"] = true, ["apart lane"] = true }

local function contains(list, wanted)
  for _, one in ipairs(list) do
    if one == wanted then return true end
  end
  return false
end

local function belongs(rec, kind, of, name, member)
  if kind == "tag:" then return contains(judge.tags_of(rec.jid), of) end
  if kind == "dependents:" then
    return rec.state == "depends" and score_in("dependencies:" .. rec.jid, of) and not judge.why_not(rec, of)
  end
  for _, spot in ipairs(places_of(rec)) do
    if spot[1] == name and spot[2] == member then return true end
  end
  return false
end

local function describe_place(rec, kind)
  if not rec then return "there is no record of it" end
  if kind == "tag:" then return "does not have that tag" end
  if kind == "dependents:" then return "does not wait for that job" end
  local spots = {}
  for i, spot in ipairs(places_of(rec)) do spots[i] = spot[1] end
  return "lies in " .. table.concat(spots, " and ") .. " by its record"
end

local function judge_place(kind, of, name, member)
  local jid = BY_NUMBER[kind] and string.sub(member, 14) or member
  local rec = record_of(jid)
  if rec and belongs(rec, kind, of, name, member) then return end
  rec = judge.job(jid)
  if rec and belongs(rec, kind, of, name, member) or not score_in(name, member) then return end
  local violation = STRAY[kind] or not rec and "id-without-record" or "job-in-two-places"
  if kind == "dependents:" and rec then violation = "stray-dependent" end
  report(violation, jid, "is in " .. name .. ", but " .. describe_place(rec, kind), "took it out")
  move_in(name, member, nil)
end

local members = {}

function members.recurring(name, jid, queue)
  local recur = judge_recurring(jid)
  if recur and (recur.queue or queue) == queue then return end
  report("id-without-record", jid, "is in " .. name .. ", but does not recur there", "took it out")
  move_in(name, jid, nil)
end

members["tag-counts"] = function(_, tag) size_of("tag-counts", "tag:", tag) end
function members.groups(_, group) size_of("groups", "failed:", group) end

do -- a script has at most 200 locals outside of blocks
  local function judge_day(name, day, figures)
    if is_there(figures .. day, "hash") then return end
    report("orphan", day, "is in " .. name .. ", but there are no figures of it", "took it out")
    move_in(name, day, nil)
  end

  function members.days(name, day) judge_day(name, day, "stats:") end
  function members.histograms(name, day) judge_day(name, day, "histogram:") end
end

members["tracked-jobs"] = function(_, jid)
  local rec = record_of(jid)
  if not rec or rec.tracked then return end
  report("untracked-job", jid, "is among the tracked jobs, but its record does not say so", "wrote that it is")
  change(rec, "tracked", "1")
end

function members.phantoms(name, jid)
  report("phantom", jid, "was met in a place where no record told it to lie", "looked after it and struck it off")
  judge.job(jid)
  move_in(name, jid, nil)
end

function members.expiring(name, jid)
  local rec = record_of(jid)
  if rec and judge_claim.deadline_of(rec) == score_in(name, jid) then return end
  rec = judge.job(jid)
  if rec and judge_claim.deadline_of(rec) or not score_in(name, jid) then return end
  report("wrong-deadline", jid, "is in " .. name .. ", but " .. (rec and "has no time to start by" or
    "there is no record of it"), "took it out")
  move_in(name, jid, nil)
end

function members.limits(name, limit)
  if is_there("limit:" .. limit, "hash") then return end
  report("orphan", limit, "is in " .. name .. ", but nothing is set for it", "took it out")
  move_in(name, limit, nil)
  judge_limit.freed[limit] = true
end

function members.idle(name, queue)
  if score_in("queues", queue) then return end
  report("orphan", queue, "is in " .. name .. ", but is no known queue", "took it out")
  move_in(name, queue, nil)
end

do
  -- Return what a queue has that a lease must look at before this time; nil if there is nothing.
  local function loud_part(queue, time)
    for _, part in ipairs({ "front", "waiting", "running", "lanes", "limits", "klasses" }) do
      if size_in("queue:" .. queue .. ":" .. part) > 0 then return part end
    end
    for _, part in ipairs({ "scheduled", "recurring" }) do
      local first = size_in("queue:" .. queue .. ":" .. part) > 0 and head_of(queue_key(queue, part), 1)
      if first and tonumber(first[2]) < time then return part end
    end
  end

  function members.quiet(name, queue)
    local is_known, part = score_in("queues", queue), loud_part(queue, score_in(name, queue))
    if is_known and not part then return end
    if part then
      report("quiet-queue", queue, "has jobs (" .. part .. "), but leases of many queues pass over it", "had one look")
      read_and_wake(queue)
    else
      report("orphan", queue, "is in " .. name .. ", but is no known queue", "took it out")
    end
    move_in(name, queue, nil)
  end
end

members["lanes of a queue"] = function(name, lane, queue)
  if lane ~= "" then judge_lane.line(queue, lane) end
  judge_lane.time(name, lane)
end

members["batches-open"] = judge.open_batch

function members.batches(name, id)
  if is_there("batch:" .. id, "hash") then return end
  report("orphan", id, "is in " .. name .. ", but there is no such batch", "took it out")
  move_in(name, id, nil)
end
members["batches-ended"] = members.batches

members["lanes of a limit"] = judge_lane.time
members["lanes of a klass"] = judge_lane.time
members["klasses of a queue"] = judge_apart.check_time
members["limits of a queue"] = judge_limit.check_time

local NOT_JUDGED = {
  queues = true, ["workers-seen"] = true, untold = true, ["dependencies:"] = true, ["queues of a limit"] = true,
  ["skills:"] = true, cancelled = true, dropped = true, ["readers:"] = true, kept = true, ["doorlists:"] = true,
  ["batchjobs:"] = true, ["batchfailed:"] = true, -- a sweep looks after their members
}

local function judge_member(kind, of, name, member)
  local verdict = members[kind]
  if judge_value[kind] then
    local value = value_in(name, member)
    if value then judge_value[kind](name, member, value, of) end
  elseif not verdict then
    judge_place(kind, of, name, member)
  elseif score_in(name, member) then
    verdict(name, member, of)
  end
end

-- Keys.

local keys = {}
local belonging = {}

keys["job:"] = function(_, jid) judge.job(jid) end
keys["recur:"] = function(_, jid) judge_recurring(jid) end

-- Only data is left of this job, and a check must not throw payloads away.
local function lost_data(name, whose)
  local detail = "is there without the " .. whose .. " that it belongs to"
  urgent[#urgent + 1] = { kind = "orphan", subject = name, detail = detail, aside = { name } }
end

local function orphan(name, whose)
  if not is_there(name, TYPES[string.match(name, "^%l+")]) then return end
  if string.match(name, "^recurdata:") or string.match(name, "^data:") then return lost_data(name, whose) end
  report("orphan", name, "is there without the " .. whose .. " that it belongs to", "deleted it")
  drop(P .. name)
end

function belonging.job(name, jid)
  if not record_of(jid) then orphan(name, "job") end
end

function belonging.recurrence(name, jid)
  if not is_there("recur:" .. jid, "hash") then orphan(name, "recurrence") end
end

keys["data:"], keys["failure:"], keys["result:"] = belonging.job, belonging.job, belonging.job
keys["recurdata:"], keys["recurtags:"] = belonging.recurrence, belonging.recurrence

keys["progress:"] = function(name, jid)
  local rec = record_of(jid)
  if not rec then orphan(name, "job") else judge.progress(rec) end
end

keys["saved:"] = function(name, jid)
  local rec = record_of(jid)
  if not rec then orphan(name, "job") else judge.saved(rec) end
end

keys["parents:"] = function(name, jid)
  local rec = record_of(jid)
  if not rec then orphan(name, "job") else judge.parents(rec) end
end

keys["readers:"] = function(name, jid)
  if not record_of(jid) and not score_in("kept", jid) then orphan(name, "job") end
end

keys["keptresult:"] = function(name, jid)
  if not score_in("kept", jid) then orphan(name, "entry of kept") end
end
keys["keptfailure:"] = keys["keptresult:"]

keys["replay:"] = function(name, jid)
  local rec = record_of(jid)
  if not rec then orphan(name, "job") else judge.replay(rec) end
end

keys["batch:"] = judge.batch

keys["batchjobs:"] = function(name, id)
  if not is_there("batch:" .. id, "hash") then orphan(name, "batch") end
end
keys["batchfailed:"], keys["batchcalls:"] = keys["batchjobs:"], keys["batchjobs:"]

keys["history:"] = function(name, jid)
  local rec = record_of(jid)
  if not rec then return orphan(name, "job") end
  if rec.noted then return end
  report("unsaid-rest", jid, "has a history, but its record does not say so", "wrote that it has")
  change(rec, "noted", "1")
end

keys["tags:"] = function(name, jid)
  local rec = record_of(jid)
  if not rec then orphan(name, "job") elseif not rec.tagged then judge.tags(rec) end
end

keys["dependencies:"] = function(name, jid)
  local rec = record_of(jid)
  if rec and rec.state == "depends" or zsets[P .. name] then return end
  orphan(name, "waiting job")
end

local function list_day(name, day)
  if score_in(name, day) then return end
  report("unlisted-day", day, "has figures, but is not in " .. name, "listed it")
  place(P .. name, day, tonumber(string.match(day, "^%-?%d+")) or 0)
end

keys["stats:"] = function(_, day) list_day("days", day) end
keys["histogram:"] = function(_, day) list_day("histograms", day) end

local function must_end(name, ttl)
  if redis.call("PTTL", P .. name) ~= -1 then return end
  report("no-expiry", name, "would stay for ever", "gave it an end")
  expire(P .. name, ttl)
end

keys["worker:"] = function(name) must_end(name, DAY_MS) end
function keys.cancelled(name) must_end(name, DAY_MS) end
keys["cancelled-by"], keys.dropped = keys.cancelled, keys.cancelled
function keys.unheard(name) must_end(name, 3600000) end
function keys.audit(name) must_end(name, 90 * DAY_MS) end
keys["skills:"] = function(name) must_end(name, DAY_MS) end
keys["shapes:"] = function(name) must_end(name, DAY_MS) end
keys["schema:"] = function(name, shape)
  if string.sub(redis.sha1hex(redis.call("GET", P .. name) or ""), 1, 16) == shape then
    return must_end(name, DAY_MS)
  end
  report("foreign-value", name, "is not the schema that it is named after", "deleted it")
  drop(P .. name)
end
keys["mail:"] = function(name) must_end(name, HOUR_MS) end
keys["ended:"] = function(name) must_end(name, HOUR_MS) end
-- Until its job has ended, a stream lives for days after its last chunk.
keys["stream:"] = function(name, jid) must_end(name, record_of(jid) and 7 * DAY_MS or HOUR_MS) end
keys["bins:"] = function(name) must_end(name, 31 * DAY_MS) end
keys["recent:"] = function(name) must_end(name, DAY_MS) end
keys["course:"] = function(name) must_end(name, 32 * DAY_MS) end
keys["asks:"] = function(name) must_end(name, HOUR_MS) end
keys["answer:"] = function(name) must_end(name, HOUR_MS) end
keys["desired:"] = function(name) must_end(name, HOUR_MS) end
keys["starts:"] = function(name)
  must_end(name, DAY_MS)
  judge_limit.starts(name)
end
keys["throttled:"] = judge.throttled
keys["limit:"] = judge_limit.settings
function keys.token() drawn("token", 0) end
function keys.seq() drawn("seq", 0) end
keys["failed-dropped"] = function(name) drawn(name, 0) end

keys["lane:"] = function(_, line)
  beside.lane(line)
  list_queue(string.match(line, "^[^\n]*"))
end
keys["parked lane"] = function(_, line) beside.limited(line) end
keys["apart lane"] = function(_, line) beside.apart(line) end

local OF_QUEUE_TO_KNOW = {
  waiting = true, front = true, running = true, scheduled = true, depends = true, recurring = true, parked = true,
  apart = true,
}

local SIZE = { zset = "ZCARD", hash = "HLEN" }

local function judge_all(kind, of, name, expected)
  local size = redis.call(SIZE[expected], P .. name)
  if kind == "tag:" then size_of("tag-counts", "tag:", of) end
  if kind == "failed:" then size_of("groups", "failed:", of) end
  if OF_QUEUE_TO_KNOW[kind] then list_queue(of) end
  if size > room then
    table.insert(too_large[expected], name)
    return
  end
  room = room - size
  local found = expected == "hash" and redis.call("HKEYS", P .. name) or redis.call("ZRANGE", P .. name, 0, -1)
  for _, member in ipairs(found) do judge_member(kind, of, name, member) end
end

-- The type is seen when the job is judged.
local OF_THE_JOB = { ["job:"] = true, ["data:"] = true, ["tags:"] = true }

local MARKS = { config = true, tracked = true, tags = true, workers = true }

local function mark_of(name)
  if name ~= "config" then return "2" end
  layout.has_options = redis.call("EXISTS", P .. "options") == 1
  return layout.mark()
end

-- Without these, clients of Leasehold 0.1 could write here.
local function judge_mark(name)
  local is_foreign = not is_there(name, "string") and types[name] ~= "none"
  if is_foreign or layout.state == "new" then return end
  local wanted = mark_of(name)
  local found = types[name] == "string" and redis.call("GET", P .. name)
  if found == wanted then return end
  report("lost-mark", name, "says " .. (found or "nothing") .. " of the layout, not " .. wanted, "wrote it")
  store(P .. name, wanted)
end

local function judge_key(name)
  if MARKS[name] then return judge_mark(name) end
  local kind, of, expected = kind_of(name)
  if not kind or not OF_THE_JOB[kind] and not is_there(name, expected) then return end
  if keys[kind] then keys[kind](name, of) end
  if expected == "zset" and not NOT_JUDGED[kind] or judge_value[kind] then judge_all(kind, of, name, expected) end
end

-- The reply.

local kind, of, expected
if set ~= "" then kind, of, expected = kind_of(set) end
if set == "" then
  for i = 4, #ARGV do judge_key(ARGV[i]) end
elseif kind == "laned:" then
  judge_lane.count(of, { unpack(ARGV, 4) })
elseif is_there(set, expected) then
  for i = 4, #ARGV do judge_member(kind, of, set, ARGV[i]) end
end
for _, plan in ipairs(mended_with) do plan() end
judge_counters()

if mending and #urgent > 0 then
  reports = {}
  for _, one in ipairs(urgent) do report(one.kind, one.subject, one.detail, mend_first(one)) end
  for _, one in ipairs(urgent) do -- without its marks, the next call would take the rest for another layout
    if MARKS[one.subject] then redis.call("SET", P .. one.subject, mark_of(one.subject)) end
  end
  return { 1, {}, {}, reports }
end
for _, one in ipairs(urgent) do report(one.kind, one.subject, one.detail, "") end
if mending then
  plan_changes()
  commit()
else
  for i = 4, #reports, 4 do reports[i] = "" end
end
return { 0, too_large.zset, too_large.hash, reports }
