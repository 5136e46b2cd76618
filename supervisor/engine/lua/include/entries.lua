-- entries.lua: entries that other programs push to in:<queue>. An entry is the JSON of an object with a klass and put's
-- other arguments; or, in a queue with a configured klass, data for that. Its bytes are kept unchanged, and the reader
-- of the job takes the data from them, because Lua's decoder loses large numbers and empty lists.
--- @module
--- @include stage
--- @include retention
--- @include exact
--- @include layout
-- Bytes. A call takes several entries of up to MOST_BYTES together. Decoding one of MOST_DECODED takes 50 ms.
local MOST_BYTES, MOST_DECODED = 524288, 1048576
local LATER = "later" -- the job that an entry would replace is being leased by this call
local POLICIES = { wait = true, fail = true, run = true }
local checks = {}
local read_bytes = 0 -- of entries that this call has read again

local function is_utf8(text)
  if not string.find(text, "[\128-\255]") then return true end
  local i = 1
  while i <= #text do
    local lead, second = string.byte(text, i, i + 1)
    local more = lead < 0x80 and 0 or lead >= 0xC2 and lead < 0xE0 and 1 or lead >= 0xE0 and lead < 0xF0 and 2
      or lead >= 0xF0 and lead < 0xF5 and 3
    if not more then return false end
    for j = i + 1, i + more do
      local byte = string.byte(text, j)
      if not byte or byte < 0x80 or byte > 0xBF then return false end
    end
    if lead == 0xE0 and second < 0xA0 or lead == 0xED and second > 0x9F or lead == 0xF0 and second < 0x90
      or lead == 0xF4 and second > 0x8F then
      return false
    end
    i = i + more + 1
  end
  return true
end

-- Equals checked_name of supervisor/engine/model/keys.py.
local function is_name(value)
  return type(value) == "string" and #value >= 1 and #value <= 64 and not string.find(value, "%c")
    and not string.find(value, "\194[\128-\159]") and is_utf8(value)
end

local function name(value) return is_name(value) and value, "a name of 1 to 64 bytes" end

local function whole(least)
  return function(value)
    local fits = type(value) == "number" and value >= least and value <= EXACT and value == math.floor(value)
    return fits and string.format("%.0f", value), "a whole number" .. (least == 0 and " that is 0 or more" or "")
  end
end

local function seconds(value)
  local fits = type(value) == "number" and value >= 0 and value <= EXACT / 1000
  return fits and string.format("%.0f", value * 1000), "a number of seconds that is 0 or more"
end

local function names(most)
  return function(value)
    local wanted, found, seen = "a list of at most " .. most .. " names", {}, {}
    if type(value) ~= "table" then return false, wanted end
    for i in pairs(value) do
      if type(i) ~= "number" then return false, wanted end
    end
    for _, one in ipairs(value) do
      if not seen[one] then
        if #found == most or not is_name(one) then return false, wanted end
        found[#found + 1], seen[one] = one, true
      end
    end
    return table.concat(found, "\n"), wanted
  end
end

local function flag(value) return type(value) == "boolean" and (value and "1" or "0"), "true or false" end

checks.klass, checks.jid, checks.lane = name, name, name
checks.priority, checks.retries, checks.max_deaths = whole(-EXACT), whole(0), whole(0)
checks.delay, checks.at, checks.timeout = seconds, seconds, seconds

function checks.expires(value)
  local ms = seconds(value)
  return ms and ms ~= "0" and ms, "a number of seconds above 0"
end

checks.tags, checks.depends = names(100), names(1000)
checks.persistent, checks.at_most_once = flag, flag

function checks.limit(value)
  if is_name(value) then return value, "" end
  local keys = names(8)(value)
  return keys and keys ~= "" and string.gsub(keys, "\n", "\t"), "a name of 1 to 64 bytes, or a list of 1 to 8 of them"
end

function checks.unique(value)
  if type(value) == "boolean" then return value and "1" or "", "" end
  return is_name(value) and ":" .. value, "true, false or a name"
end

-- Equals checked_trace of supervisor/engine/model/trace_context.py.
local function hex(n) return "(" .. string.rep("[0-9a-f]", n) .. ")" end
local TRACE = "^" .. table.concat({ hex(2), hex(32), hex(16), hex(2) }, "%-") .. "$"

function checks.trace(value)
  local wanted = "a W3C traceparent"
  if type(value) ~= "string" then return false, wanted end
  local version, trace, parent = string.match(value, TRACE)
  return version and version ~= "ff" and string.find(trace, "[^0]") and string.find(parent, "[^0]") and value, wanted
end

function checks.on_parent_failure(value) return POLICIES[value] and value, "wait, fail or run" end
function checks.data() return "", "" end

function checks.data_b64(value)
  local fits = type(value) == "string" and #value % 4 == 0 and string.find(value, "^[%w+/]*=?=?$")
  return fits and "", "bytes in base64"
end

-- Options that have another name in a record.
local FIELDS = { on_parent_failure = "policy", at_most_once = "once" }
local NOT_OPTIONS = { klass = true, jid = true, delay = true, at = true, data = true, data_b64 = true }

entries.is_name, entries.MOST_BYTES, entries.MOST_DECODED = is_name, MOST_BYTES, MOST_DECODED

-- Return the object of a JSON text, or its array if `bracket` is "["; or nil, why not, and whether that is unclear.
function entries.parsed(entry, bracket)
  if not string.find(entry, "^%s*%" .. (bracket or "{")) then
    return nil, "it is not a JSON " .. (bracket and "array" or "object")
  end
  if #entry > MOST_DECODED then
    return nil, "it is too large: " .. #entry .. " bytes, above " .. MOST_DECODED, true
  end
  local is_json, found = pcall(cjson.decode, entry)
  if not is_json then
    return nil, string.find(tostring(found), "nested", 1, true) and "it is nested too deeply" or "it is not JSON"
  end
  return found
end

-- Return the object of an entry; or nil, why it is invalid, and whether it may still be a job.
local function decoded(entry)
  local found, why, is_unclear = entries.parsed(entry)
  if not found then return nil, is_unclear and why .. ": put it by a client" or why, is_unclear end
  if found.klass == nil or found.klass == cjson.null then return nil, "it has no klass" end
  return found
end

-- Return the arguments of a put; or nil, and why there are none.
local function arguments_of(found)
  local given, options = {}, {}
  for key, value in pairs(found) do
    local check = checks[key]
    if not check then return nil, "it has the unknown key " .. string.format("%.60s", tostring(key)) end
    if value ~= cjson.null or key == "data" then
      local text, wanted = check(value)
      if not text then return nil, key .. " must be " .. wanted end
      given[key] = text
      if not NOT_OPTIONS[key] then options[FIELDS[key] or key] = text end
    end
  end
  if given.delay and given.at then return nil, "at and delay exclude each other" end
  if given.data and given.data_b64 then return nil, "data and data_b64 exclude each other" end
  if options.persistent == "1" and options.once == "1" then
    return nil, "persistent and at_most_once exclude each other"
  end
  return given, options
end

local function default_klass(queue)
  local set = redis.call("HMGET", P .. "options", "klass-" .. queue, "klass")
  return set[1] or set[2]
end

-- Return the weight of an entry with tags and parents, as NewJob.weight of supervisor/engine/model/new_jobs.py.
local function weight_of(options)
  local _, tags = string.gsub(options.tags or "", "[^\n]+", "")
  local _, parents = string.gsub(options.depends or "", "[^\n]+", "")
  return 1 + math.floor((tags + 2 * parents) / 2)
end

local function fresh_jid() return stage.free_jid("in-" .. digits(next_seq())) end

-- Put the job that an entry describes, under `jid` if it names none. Return as stage.put() does, or LATER; then its
-- klass, its own jid, and its weight.
local function put(queue, entry, jid)
  local found, why, is_unclear = decoded(entry)
  local klass = not found and not is_unclear and default_klass(queue)
  if klass then return stage.put("put", queue, jid or fresh_jid(), klass, "bytes", entry, nil, {}) end
  if not found then return nil, why end
  klass = is_name(found.klass) and found.klass
  local given, options = arguments_of(found)
  if not given then return nil, options, klass end
  local tie = layout.shards and (options.limit and "limit" or options.unique and options.unique ~= "" and "unique"
    or options.depends and options.depends ~= "" and "depends")
  if tie then return nil, tie .. " may be in another of the namespace's shards: put it by a client", klass end
  if moves.given[given.jid] then return LATER end
  local due = tonumber(given.at) or given.delay and now + given.delay
  local answer, refusal = stage.put("put", queue, given.jid or jid or fresh_jid(), klass, "entry", entry, due, options)
  return answer, refusal, klass, given.jid, weight_of(options)
end

local function why_broken(list, why) return failure_of("broken", "an entry of " .. list .. " is no job: " .. why) end

-- Keep an invalid entry of a list among the failed jobs, with its bytes.
function entries.fail(list, queue, entry, why, klass)
  local rec = create_job(fresh_jid())
  stage.begin(rec, queue)
  stage.set_data(rec, "bytes", entry)
  rec.klass, rec.entry, rec.seq = klass or "broken", 1, next_seq()
  moves.to_failed(rec, "broken", why_broken(list, why))
end

-- Raise what pcall has caught. Redis makes a text of its own errors, which begins with the error's code.
local function raise_again(problem)
  local is_of_redis = type(problem) == "string" and string.find(problem, "^%u+ ")
  error(is_of_redis and { err = problem } or problem, 0)
end

-- Read keys that only one job has. They raise if another program has put another type there.
local OWN_KEYS = {
  ["data:"] = "STRLEN", ["tags:"] = "STRLEN", ["history:"] = "LLEN",
  ["dependencies:"] = "ZCARD", ["dependents:"] = "ZCARD",
}

local function has_foreign_key(jid)
  if not pcall(stored_job, jid) then return true end
  for kind, read in pairs(OWN_KEYS) do
    local found = redis.pcall(read, P .. kind .. jid)
    if type(found) == "table" and found.err then return true end
  end
  return false
end

-- Return whether an entry names a job, as its own or as a parent, that has a key of a foreign type.
local function names_foreign_key(entry)
  local found = decoded(entry)
  local parents = found and type(found.depends) == "table" and found.depends or {}
  if found and is_name(found.jid) and has_foreign_key(found.jid) then return true end
  for i = 1, math.min(#parents, 1000) do
    if is_name(parents[i]) and has_foreign_key(parents[i]) then return true end
  end
  return false
end

-- Return whether an entry causes an error. Lua's own errors do count, and foreign keys of the jobs that it names.
-- Foreign keys that all jobs of a queue need, the server and the account are not its fault.
local function is_poison(problem, entry, jid)
  local code = string.match(tostring(problem), "^(%u+) ")
  if code == "WRONGTYPE" then return jid and has_foreign_key(jid) or not jid and names_foreign_key(entry) end
  return not code or code == "REFUSED"
end

-- Raise an error again that an entry of a list has met: with its name for `handle_error` if it is the cause. `jid`: of
-- the only job that it names; nil: it says itself which.
function entries.blame(problem, key, list, queue, entry, jid)
  local poison = { poison = entry, key = key, list = list, queue = queue, why = problem }
  raise_again(is_poison(problem, entry, jid) and poison or problem)
end

-- Make jobs of up to `most` entries of a queue. Return how many, whether there may be more, and their weight. An entry
-- whose put raises leaves half a plan: the error names it, for `handle_error`.
function entries.take_in(queue, most)
  local key, n, bytes, weight = P .. "in:" .. queue, 0, 0, 0
  while weight < most and bytes < MOST_BYTES do
    local entry = redis.call("LINDEX", key, -n - 1)
    if not entry or n > 0 and bytes + #entry > MOST_BYTES then break end
    local is_put, answer, why, klass, _, its_weight = pcall(put, queue, entry)
    if not is_put then entries.blame(answer, key, "in:" .. queue, queue, entry) end
    if answer == LATER then break end
    if not answer then entries.fail("in:" .. queue, queue, entry, why, klass) end
    n, bytes, weight = n + 1, bytes + #entry, weight + (its_weight or 1)
  end
  if n > 0 then shift(key, n) end
  return n, redis.call("LLEN", key) > n and n > 0, weight
end

-- End a script that met an error before it wrote anything. If an entry caused it, the plan is dropped and that entry
-- fails: the next call goes on with the others. Any other error is raised again. The retention of failed jobs is left
-- to a sweep, because records that were read here are half changed.
function entries.handle_error(problem)
  if type(problem) ~= "table" or not problem.poison then raise_again(problem) end
  local queue, entry, why = problem.queue, problem.poison, problem.why
  abandon()
  local jid, seq = fresh_jid(), next_seq()
  plan_broken_job(jid, queue, seq, entry)
  local failure = why_broken(problem.list, tostring(why))
  store(P .. "failure:" .. jid, failure)
  place(P .. "failed", jid, now)
  place(P .. "failed:broken", jid, now)
  place(P .. "groups", "broken", now)
  place(P .. "queues", queue, redis.call("ZSCORE", P .. "queues", queue) or now)
  local kind = redis.call("TYPE", problem.key).ok
  if kind == "zset" then place(problem.key, entry, false) else strike(problem.key, entry) end
  local job = { jid = jid, queue = queue, klass = "broken" }
  publish_job_event("job.failed", job, { group = "broken" }, moves.message_in(failure))
  commit()
end

-- Read a broken entry again: its queue has a klass by now, or this version knows the key. Return whether it is a job.
function entries.read_again(rec, queue)
  local jid, size = rec.jid, tonumber(rec.size) or 0
  if size > MOST_DECODED or read_bytes > 0 and read_bytes + size > MOST_DECODED then return false end
  read_bytes = read_bytes + size
  local answer, _, _, named = put(queue, data_of(jid) or "", jid)
  if answer ~= 1 then return false end
  if named and named ~= jid then
    moves.leave(rec)
    if rec.kin then kin.parent_gone(jid, "is " .. named .. " now") end
    retention.erase_all({ jid })
  end
  return true
end
