#!lua flags=allow-oom
-- check.lua — find what cannot be in some keys, or in some members of a sorted set; mend it, if that is wanted.
--
-- Called by: check.of_keys, check.of_members (supervisor/engine/check.py)
-- Holds:     INV-1 a job lies where its record says, and nowhere else; INV-2 what tells enough of itself runs again
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   "1" to mend, "" to look only (then this script is sent with flags=no-writes)
-- ARGV[3]   name of a sorted set whose members follow; "" if names of keys follow. Names are without the prefix.
-- ARGV[4..] members, or names; some may have gone since they were seen
--
-- Returns   array: 1 if something stood in the way that was mended first, and the same is to be asked again; array of
--           sets that have too many members for one call; array of kind, subject, detail, what was done | "", four per
--           violation.
-- Errors    none for a foreign key of ours: that is a violation.

--- @include judge
--- @include judge_recurrence
--- @include mend
local mending, set = ARGV[2] == "1", ARGV[3]

local MEMBERS = 100 -- looked at beside the keys themselves
local DAY_MS, HOUR_MS = 86400000, 3600000
local room, too_large = MEMBERS, {}

-- What the first word of a name, or the last of a queue's, promises.
local TYPES = {
  job = "hash", data = "string", failure = "string", result = "string", tags = "string", history = "list",
  dependencies = "zset", dependents = "zset", recur = "hash", recurdata = "string", recurtags = "string",
  worker = "hash", held = "zset", mail = "list", bell = "list", failed = "zset", tag = "zset", stats = "hash",
  histogram = "hash",
}
local WHOLE = {
  complete = "zset", failed = "zset", groups = "zset", queues = "zset", tags = "zset", tracked = "zset",
  workers = "zset", days = "zset", histograms = "zset", phantoms = "zset", config = "hash", announced = "hash",
  token = "string", seq = "string", ["failed-dropped"] = "string",
}
local PARTS = { waiting = true, front = true, running = true, scheduled = true, depends = true, recurring = true }

-- What a name is, of what, and which type it promises; nothing for a name that is none of ours.
local function kind_of(name)
  if WHOLE[name] then return name, "", WHOLE[name] end
  local queue, part = string.match(name, "^queue:(.*):(%l+)$")
  if queue and PARTS[part] then return part, queue, "zset" end
  local word, rest = string.match(name, "^(%l+):(.*)$")
  if TYPES[word] then return word .. ":", rest, TYPES[word] end
end

-- Members of sorted sets.

local STRAY = { ["running"] = "lease-without-job", ["held:"] = "lease-without-job", ["tag:"] = "tag-without-job" }

local function contains(list, wanted)
  for _, one in ipairs(list) do
    if one == wanted then return true end
  end
  return false
end

local function belongs(rec, kind, of, name, member)
  if kind == "tag:" then return contains(tags_of(rec.jid), of) end
  if kind == "dependents:" then
    return rec.state == "depends" and score_in("dependencies:" .. rec.jid, of) and not why_not(rec, of)
  end
  for _, spot in ipairs(places_of(rec)) do
    if spot[1] == name and spot[2] == member then return true end
  end
  return false
end

local function what_instead(rec, kind)
  if not rec then return "there is no record of it" end
  if kind == "tag:" then return "does not have that tag" end
  if kind == "dependents:" then return "does not wait for that job" end
  local spots = {}
  for i, spot in ipairs(places_of(rec)) do spots[i] = spot[1] end
  return "lies in " .. table.concat(spots, " and ") .. " by its record"
end

local function judge_place(kind, of, name, member)
  local jid = (kind == "waiting" or kind == "scheduled") and string.sub(member, 14) or member
  local rec = record_of(jid)
  if rec and belongs(rec, kind, of, name, member) then return end
  rec = judge_job(jid)
  if rec and belongs(rec, kind, of, name, member) or not score_in(name, member) then return end
  local violation = STRAY[kind] or not rec and "id-without-record" or "job-in-two-places"
  if kind == "dependents:" and rec then violation = "stray-dependent" end
  report(violation, jid, "is in " .. name .. ", but " .. what_instead(rec, kind), "took it out")
  move_in(name, member, nil)
end

local members = {}

function members.recurring(name, jid, queue)
  local recur = judge_recurring(jid)
  if recur and (recur.queue or queue) == queue then return end
  report("id-without-record", jid, "is in " .. name .. ", but does not recur there", "took it out")
  move_in(name, jid, nil)
end

function members.tags(_, tag) size_of("tags", "tag:", tag) end
function members.groups(_, group) size_of("groups", "failed:", group) end

local function judge_day(name, day, figures)
  if is_there(figures .. day, "hash") then return end
  report("orphan", day, "is in " .. name .. ", but there are no figures of it", "took it out")
  move_in(name, day, nil)
end

function members.days(name, day) judge_day(name, day, "stats:") end
function members.histograms(name, day) judge_day(name, day, "histogram:") end

function members.tracked(_, jid)
  local rec = record_of(jid)
  if not rec or rec.tracked then return end
  report("untracked-job", jid, "is among the tracked jobs, but its record does not say so", "wrote that it is")
  change(rec, "tracked", "1")
end

function members.phantoms(name, jid)
  report("phantom", jid, "was met in a place where no record told it to lie", "looked after it and struck it off")
  judge_job(jid)
  move_in(name, jid, nil)
end

local NOT_JUDGED = { queues = true, workers = true, ["dependencies:"] = true }

local function judge_member(kind, of, name, member)
  local judge = members[kind]
  if not judge then
    judge_place(kind, of, name, member)
  elseif score_in(name, member) then
    judge(name, member, of)
  end
end

-- Keys.

local keys = {}
local belonging = {}

keys["job:"] = function(_, jid) judge_job(jid) end
keys["recur:"] = function(_, jid) judge_recurring(jid) end

-- Data is all that is left of a job: it is not for a check to throw away.
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
  if not records[jid] and not is_there("job:" .. jid, "hash") then orphan(name, "job") end
end

function belonging.recurrence(name, jid)
  if not is_there("recur:" .. jid, "hash") then orphan(name, "recurrence") end
end

keys["data:"], keys["failure:"], keys["result:"] = belonging.job, belonging.job, belonging.job
keys["recurdata:"], keys["recurtags:"] = belonging.recurrence, belonging.recurrence

keys["history:"] = function(name, jid)
  local rec = record_of(jid)
  if not rec then return orphan(name, "job") end
  if rec.noted then return end
  report("unsaid-rest", jid, "has a history, but its record does not say so", "wrote that it has")
  change(rec, "noted", "1")
end

keys["tags:"] = function(name, jid)
  local rec = record_of(jid)
  if not rec then orphan(name, "job") elseif not rec.tagged then judge_tags(rec) end
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
keys["mail:"] = function(name) must_end(name, HOUR_MS) end
function keys.token() drawn("token", 0) end
function keys.seq() drawn("seq", 0) end

local function judge_set(kind, of, name)
  local size = redis.call("ZCARD", P .. name)
  if kind == "tag:" then size_of("tags", "tag:", of) end
  if kind == "failed:" then size_of("groups", "failed:", of) end
  if PARTS[kind] then list_queue(of) end
  if size > room then
    too_large[#too_large + 1] = name
    return
  end
  room = room - size
  for _, member in ipairs(redis.call("ZRANGE", P .. name, 0, -1)) do judge_member(kind, of, name, member) end
end

-- Whose type shows when the job is looked at.
local OF_THE_JOB = { ["job:"] = true, ["data:"] = true, ["tags:"] = true }

local function judge_key(name)
  local kind, of, expected = kind_of(name)
  if not kind or not OF_THE_JOB[kind] and not is_there(name, expected) then return end
  if keys[kind] then keys[kind](name, of) end
  if expected == "zset" and not NOT_JUDGED[kind] then judge_set(kind, of, name) end
end

-- The end.

local kind, of, expected
if set ~= "" then kind, of, expected = kind_of(set) end
if set == "" then
  for i = 4, #ARGV do judge_key(ARGV[i]) end
elseif is_there(set, expected) then
  for i = 4, #ARGV do judge_member(kind, of, set, ARGV[i]) end
end
judge_counters()

if mending and #urgent > 0 then
  reports = {}
  for _, one in ipairs(urgent) do report(one.kind, one.subject, one.detail, mend_first(one)) end
  return { 1, {}, reports }
end
for _, one in ipairs(urgent) do report(one.kind, one.subject, one.detail, "") end
if mending then
  plan_changes()
  commit()
else
  for i = 4, #reports, 4 do reports[i] = "" end
end
return { 0, too_large, reports }
