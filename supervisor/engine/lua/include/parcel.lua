-- parcel.lua: all that a shard holds of one thing that moves to another one: a job, a recurrence, a limit, the span of
-- a throttled key, or what is remembered of a jid. depart.lua reads it, arrive.lua stores it where it goes, leave.lua
-- removes it where it was, and land.lua puts it into its places. A parcel is an array of parts: a letter, a name
-- without the prefix, a number, and so many texts.
--
--   s name value             a string                  z name member score   a member of a sorted set
--   b name size              a large one, which goes   t tag jid score       a job's tag
--                            in pieces                 g group jid score     a failed job of a group
--   h name field value …     a hash                    f name field value    a field of a hash that others share
--   l name value …           a list                    c name by             a counter, and what the job adds to it
--   x name id n field …      a stream                  j name member score   a member unless it is there
--   e name ms                how long a key lives      q queue               the queue that the thing lies in
--- @module
--- @include digits
--- @include keys
--- @include parked
--- @include stored
local LARGE_BYTES = 65536
local BESIDE = { "failure:", "result:", "tags:", "progress:", "saved:", "parents:" }

local function add(parts, letter, name, ...)
  local at, n = #parts + 3, select("#", ...)
  parts[at - 2], parts[at - 1], parts[at] = letter, name, n
  for i = 1, n do parts[at + i] = (select(i, ...)) end
end

local function add_array(parts, letter, name, values)
  if #values == 0 then return end
  add(parts, letter, name)
  local at = #parts
  parts[at] = #values
  for i, value in ipairs(values) do parts[at + i] = value end
end

-- Add a string. Return whether it is there.
local function add_string(parcel_of_it, name)
  local size = redis.call("STRLEN", P .. name)
  if size > LARGE_BYTES then
    parcel_of_it.large, parcel_of_it.size = name, size
    add(parcel_of_it.parts, "b", name, size)
    return true
  end
  local value = redis.call("GET", P .. name)
  if value then add(parcel_of_it.parts, "s", name, value) end
  return value ~= false
end

local function add_member(parts, letter, name, member, key)
  local score = redis.call("ZSCORE", P .. (key or name), member)
  if score then add(parts, letter, name, member, score) end
  return score ~= false
end

-- Parts by which a parcel is not told from a later one of the same thing: what changes with time, or with other jobs.
local function add_life(parcel_of_it, name)
  local ms = redis.call("PTTL", P .. name)
  if ms > 0 then add(parcel_of_it.aside, "e", name, ms) end
end

local function add_stream(parcel_of_it, name)
  local values = {}
  for _, entry in ipairs(redis.call("XRANGE", P .. name, "-", "+")) do
    values[#values + 1], values[#values + 2] = entry[1], #entry[2]
    for _, text in ipairs(entry[2]) do values[#values + 1] = text end
  end
  add_array(parcel_of_it.parts, "x", name, values)
  if #values > 0 then add_life(parcel_of_it, name) end
end

local places = {}

function places.waiting(it, rec, at)
  local parts, aside, queue, wanted = it.parts, it.aside, rec.queue, waits_for(rec.parked)
  if wanted == "klass" then
    local label, line = label_of(rec), line_named(rec)
    local index = "apart:" .. label .. "\n" .. queue
    add_member(aside, "j", at .. "klasses", label)
    add_member(aside, "j", index, line)
    local lies = add_member(parts, "z", at .. "apart", rec.jid)
    return lies and add_member(parts, "z", index .. "\n" .. line, member_of(rec.jid, rec.turn or rec.seq))
  elseif wanted then
    return false
  elseif rec.turn and not rec.aside then
    return add_member(parts, "z", at .. "front", rec.jid)
  end
  add_member(aside, "j", at .. "lanes", rec.lane or "")
  if not rec.lane then return add_member(parts, "z", at .. "waiting", member_of(rec.jid, rec.seq)) end
  add(parts, "c", "laned:" .. queue, 1)
  local member = member_of(rec.jid, rec.aside and rec.turn or rec.seq)
  return add_member(parts, "z", "lane:" .. queue .. "\n" .. rec.lane, member)
end

function places.scheduled(it, rec, at)
  return add_member(it.parts, "z", at .. "scheduled", member_of(rec.jid, rec.seq))
end

function places.complete(it, rec) return add_member(it.parts, "z", "complete", rec.jid) end

function places.failed(it, rec)
  local lies = add_member(it.parts, "z", "failed", rec.jid)
  return lies and rec.group and add_member(it.parts, "g", rec.group, rec.jid, "failed:" .. rec.group)
end

-- Return why a job cannot move now; "" if it can.
local function why_it_stays(rec, is_full)
  if rec.state == "running" then return "runs" end
  if rec.batch then return "batch" end
  if rec.door then return "door" end
  local is_over = rec.state == "complete"
  local kin = { P .. "dependencies:" .. rec.jid, P .. "dependents:" .. rec.jid, P .. "readers:" .. rec.jid }
  if rec.state == "depends" or rec.parents and not is_over or is_full and redis.call("EXISTS", unpack(kin)) > 0 then
    return "depends"
  end
  return rec.limit and not is_over and "limit" or ""
end

local function add_beside(it, rec)
  local parts, jid = it.parts, rec.jid
  for _, kind in ipairs(BESIDE) do add_string(it, kind .. jid) end
  add_array(parts, "l", "history:" .. jid, redis.call("LRANGE", P .. "history:" .. jid, 0, -1))
  add_array(parts, "h", "replay:" .. jid, redis.call("HGETALL", P .. "replay:" .. jid))
  add_stream(it, "stream:" .. jid)
  if rec.tracked then add_member(parts, "z", "tracked-jobs", jid) end
  if rec.expires then add_member(parts, "z", "expiring", jid) end
  for _, tag in ipairs(rec.tagged and lines_of(redis.call("GET", P .. "tags:" .. jid) or "") or {}) do
    add_member(parts, "t", tag, jid, "tag:" .. tag)
  end
  if not rec.unique or rec.state == "complete" then return end
  it.unique = rec.unique
  if redis.call("HGET", P .. "unique:" .. rec.queue, rec.unique) == jid then
    add(parts, "f", "unique:" .. rec.queue, rec.unique, jid)
  end
end

local kinds = {}

function kinds.job(it, jid)
  local rec, flat, payload = stored_row(jid)
  if not rec then return "gone" end
  rec.jid = jid
  local text, queue = dense_text(jid), rec.queue or ""
  it.limit = rec.state ~= "complete" and rec.limit or ""
  local why = why_it_stays(rec, not text)
  if why ~= "" then return why end
  if text then add(it.parts, "s", "job:" .. jid, text) else add_array(it.parts, "h", "job:" .. jid, flat) end
  local has_data = payload ~= nil or add_string(it, "data:" .. jid)
  if text then
    if rec.state == "complete" then add_string(it, "result:" .. jid) end
  else
    add_beside(it, rec)
  end
  add(it.aside, "q", queue)
  local is_right = rec.queue and rec.seq and has_data
  return is_right and places[rec.state or "waiting"](it, rec, "queue:" .. queue .. ":") and "" or "damaged"
end

-- A job that does not move: only what it is tied to counts.
function kinds.home(it, jid)
  local rec = stored_job(jid)
  if rec and rec.state ~= "complete" then it.limit, it.unique = rec.limit or "", rec.unique end
  return rec and "home" or "gone"
end

function kinds.recur(it, jid)
  local pattern, flat = read_fields(P .. "recur:" .. jid)
  if not pattern then return "gone" end
  it.limit = pattern.limit or ""
  if pattern.limit then return "limit" end
  it.unique = pattern.unique
  add_array(it.parts, "h", "recur:" .. jid, flat)
  local has_data = add_string(it, "recurdata:" .. jid)
  add_string(it, "recurtags:" .. jid)
  local queue = pattern.queue or ""
  add(it.aside, "q", queue)
  return has_data and add_member(it.parts, "z", "queue:" .. queue .. ":recurring", jid) and "" or "damaged"
end

function kinds.limit(it, limit)
  local flat = redis.call("HGETALL", P .. "limit:" .. limit)
  if #flat == 0 then return "gone" end
  add_array(it.parts, "h", "limit:" .. limit, flat)
  add_member(it.parts, "z", "limits", limit)
  add_array(it.parts, "l", "starts:" .. limit, redis.call("LRANGE", P .. "starts:" .. limit, 0, -1))
  add_life(it, "starts:" .. limit)
  return redis.call("EXISTS", P .. "holders:" .. limit, P .. "limited:" .. limit) > 0 and "limit" or ""
end

function kinds.throttled(it, of)
  local name = "throttled:" .. of
  local values = redis.call("LRANGE", P .. name, 0, -1)
  add_array(it.parts, "l", name, values)
  add_life(it, name)
  return #values == 0 and "gone" or ""
end

-- The memory of a jid without a job.
function kinds.memory(it, jid)
  if redis.call("EXISTS", job_key(jid)) == 1 then return "gone" end
  for _, name in ipairs({ "tracked-jobs", "cancelled", "dropped" }) do add_member(it.parts, "z", name, jid) end
  local by = redis.call("HGET", P .. "cancelled-by", jid)
  if by then add(it.parts, "f", "cancelled-by", jid, by) end
  for _, name in ipairs({ "cancelled", "cancelled-by", "dropped" }) do add_life(it, name) end
  return #it.parts == 0 and "gone" or ""
end

-- Read the dense records of some jobs by one call.
function parcel.read_ahead(names)
  local jids = {}
  for _, name in ipairs(names) do
    jids[#jids + 1] = string.match(name, "^job:(.*)$") or string.match(name, "^home:(.*)$")
  end
  read_ahead(jids)
end

-- Return the parcel of a thing by its kind, a colon and its name: `why` it stays, "" if it can move; its `limit`, its
-- `unique` key, its `seal`, the name of its `large` string and the `size` of that; its `parts`, and those `aside`.
function parcel.of(name)
  local kind, of = string.match(name, "^(%l+):(.*)$")
  local it = { limit = "", unique = "", large = "", size = 0, parts = {}, aside = {} }
  it.why = kinds[kind](it, of)
  it.unique = it.unique or ""
  it.seal = redis.sha1hex(table.concat(it.parts, "\0"))
  return it
end

-- Call the function of its letter for each part of an array, from an index on: with the name and an array of texts.
function parcel.each(parts, at, by_letter)
  while at <= #parts do
    local n, act = tonumber(parts[at + 2]), by_letter[parts[at]]
    if act then
      local texts = {}
      for i = 1, n do texts[i] = parts[at + 2 + i] end
      act(parts[at + 1], texts)
    end
    at = at + 3 + n
  end
end
