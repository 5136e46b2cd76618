-- batches.lua: jobs that were put as one batch: how many of its members have ended, and the jobs that are put then.
-- batch:<id> counts. batchjobs:<id> has the members that have not ended: a member leaves it once, so each end counts
-- once. batchfailed:<id> has the failed ones. A nested batch is a member of its parent.
--- @module
--- @include clock
--- @include chunks
--- @include record
--- @include stage
--- @include pauses
local KEPT, KEPT_MS = 10000, 604800000 -- ended batches, and for how long
local MOST_FORGOTTEN = 16 -- by one call, beside two for each batch that it ends
local MOST_DEPTH = 10 -- of batches in batches
local LOOK_AGAIN = 60000 -- ms
local LOOKED_AT, MEMBERS_LOOKED_AT = 10, 200 -- batches, and members of each, in one sweep
-- The most that ends of batches may cost in one call, in tenths of ms: 1 for each end, and 2 for each callback, beside
-- its size.
local room = 300
local TAGS_A_UNIT, BYTES_A_UNIT = 8, 8192
local known, touched, kept, n_ended = {}, {}, {}, 0

local function jobs_key(id) return P .. "batchjobs:" .. id end
local function failed_key(id) return P .. "batchfailed:" .. id end
local function as_member(id) return "\n" .. id end -- which no jid can be

-- Return the record of a batch with this script's changes; nil if there is none.
local function read(id)
  if known[id] == nil then
    local fields = read_fields(P .. "batch:" .. id)
    known[id] = fields and { was = fields } or false
    for field, value in pairs(fields or {}) do known[id][field] = value end
  end
  return known[id] or nil
end

local function number_of(batch, field) return tonumber(batch[field]) or 0 end

local function pending(batch)
  return number_of(batch, "total") - number_of(batch, "complete") - number_of(batch, "failed")
    - number_of(batch, "cancelled")
end

local function forget(id)
  known[id] = false
  place(P .. "batches-ended", id, false)
  for _, kind in ipairs({ "batch:", "batchjobs:", "batchfailed:", "batchcalls:" }) do drop(P .. kind .. id) end
end

-- Forget ended batches that are too old, or too many.
function batches.prune()
  local key = P .. "batches-ended"
  local aged = redis.call("ZCOUNT", key, "-inf", now - KEPT_MS)
  local n = math.min(math.max(aged, redis.call("ZCARD", key) - KEPT), MOST_FORGOTTEN + 2 * n_ended)
  for _, id in ipairs(n > 0 and redis.call("ZRANGE", key, 0, n - 1) or {}) do
    if not known[id] then forget(id) end
  end
end

-- Keep the put of a callback, a field for each of its values.
local function keep_callback(fields, name, put)
  local function add_field(key, value) fields[#fields + 1], fields[#fields + 2] = name .. ":" .. key, value end
  for _, key in ipairs({ "queue", "jid", "klass", "kind", "data" }) do add_field(key, put[key]) end
  for option, value in pairs(put.options) do add_field("option:" .. option, value) end
end

-- Return the put of a callback as it was kept, and its options.
local function kept_callback(id, name)
  kept[id] = kept[id] or read_fields(P .. "batchcalls:" .. id) or {}
  local put, options = {}, {}
  for field, value in pairs(kept[id]) do
    local of, key = string.match(field, "^([%l_]+):(.*)$")
    local option = key and string.match(key, "^option:(.*)$")
    if of == name and option then options[option] = value elseif of == name then put[key] = value end
  end
  return put, options
end

-- A callback is put once. One without its fields is left out: it must not hold up the outcome that ends the batch. Nor
-- may a job of its jid, which something else has put.
local function call_back(id, batch, name)
  if not string.find(batch.calls or "", name, 1, true) then return end
  batch.calls = string.gsub(batch.calls, name .. " ", "", 1)
  if batch.calls == "" then batch.calls = nil end
  local put, options = kept_callback(id, name)
  if not (put.queue and put.jid and put.klass and put.kind and put.data) then return end
  room = room - 2 - #lines_of(options.tags) / TAGS_A_UNIT - #put.data / BYTES_A_UNIT
  local jid = read_job(put.jid) and stage.free_jid(put.jid) or put.jid
  stage.put("put", put.queue, jid, put.klass, put.kind, put.data, nil, options)
end

local function state_of(batch)
  if not batch.closed or pending(batch) > 0 then return nil end
  return number_of(batch, "failed") > 0 and "failed" or number_of(batch, "cancelled") > 0 and "cancelled" or "complete"
end

-- Note whether a batch has ended, or goes on. An end for which this call has no room is left to a sweep.
local function evaluate(id)
  local batch = known[id]
  local state, before = state_of(batch), batch.state
  if state == before then return end
  if state and room <= 0 then return place(P .. "batches", id, 0) end
  room = room - 1
  batch.state, batch.ended = state, state and now or nil
  place(P .. "batches", id, not state and now)
  place(P .. "batches-ended", id, state and now or false)
  if batch.parent and before then batches.member_back(batch.parent, as_member(id), before) end
  if batch.parent and state then batches.member_ended(batch.parent, as_member(id), state) end
  if state then
    publish_event("batch.ended", {
      batch = id, state = state, total = number_of(batch, "total"), failed = number_of(batch, "failed"),
    })
    call_back(id, batch, "on_complete")
    if state == "complete" then call_back(id, batch, "on_success") end
    if state == "failed" then call_back(id, batch, "on_failure") end
    n_ended = n_ended + 1
  end
end

-- Follow-ups of a job may be put into its batch by the script that ends it, so batches are looked at after these.
-- Return whether this call should end no more of them.
function batches.evaluate()
  while #touched > 0 do
    local id = table.remove(touched)
    if known[id] then evaluate(id) end
  end
  return room <= 0
end

local function finish()
  batches.evaluate()
  if n_ended > 0 then batches.prune() end
  for id, batch in pairs(known) do
    if batch and batch.was == UNWRITTEN then
      plan_new(P .. "batch:" .. id, batch)
    elseif batch then
      plan_fields(P .. "batch:" .. id, batch, batch.was)
    end
  end
end

local is_waiting = false
local function touch(id)
  if not is_waiting then finish_first_with(finish) end
  is_waiting = true
  touched[#touched + 1] = id
end

local function add(id, field, by)
  local batch = known[id]
  batch[field] = number_of(batch, field) + by
  touch(id)
end

function batches.member_ended(id, member, state)
  if not read(id) or not score_of(jobs_key(id), member) then return end
  place(jobs_key(id), member, false)
  if state == "failed" then place(failed_key(id), member, now) end
  add(id, state, 1)
end

-- A member that had ended begins anew. `put`: when its stage began, of a job. One from before the batch was opened was
-- in another batch of this id, which is forgotten.
function batches.member_back(id, member, state, put)
  local batch = read(id)
  if not batch or put and tonumber(put) < number_of(batch, "opened") then return end
  if score_of(jobs_key(id), member) or number_of(batch, state) == 0 then return end
  place(jobs_key(id), member, now)
  if state == "failed" then place(failed_key(id), member, false) end
  add(id, state, -1)
end

-- A job that lies in no place becomes a member. It leaves the batch that it was in.
function batches.join(rec, id)
  if not read(id) or rec.batch == id and score_of(jobs_key(id), rec.jid) then return end
  if rec.batch then batches.member_ended(rec.batch, rec.jid, "cancelled") end
  rec.batch = id
  place(jobs_key(id), rec.jid, now)
  add(id, "total", 1)
end

-- End the script if nothing can be put into a batch, but by its own members.
function batches.check_open(id)
  local batch = read(id)
  if not batch then
    refuse("REFUSED", "there is no batch " .. id .. ": put its jobs inside of its block, with client.batch(…) as batch")
  end
  if batch.closed then
    refuse("REFUSED", "batch " .. id .. " is closed: only its own jobs can put more into it, by job.batch.put")
  end
end

-- Create a batch. `callbacks`: the put of each, by name.
function batches.open(id, description, parent, callbacks)
  if read(id) then refuse("REFUSED", "there is a batch " .. id .. " already") end
  local names, depth, fields = {}, 0, { P .. "batchcalls:" .. id }
  if parent then
    batches.check_open(parent)
    depth = number_of(read(parent), "depth") + 1
    if depth > MOST_DEPTH then refuse("REFUSED", "batches are nested more than " .. MOST_DEPTH .. " deep") end
    place(jobs_key(parent), as_member(id), now)
    add(parent, "total", 1)
  end
  for name, put in pairs(callbacks) do
    names[#names + 1] = name .. " "
    keep_callback(fields, name, put)
  end
  drop(fields[1])
  if #names > 0 then set_fields(fields) end
  known[id] = {
    was = UNWRITTEN, opened = now, description = description, parent = parent, depth = depth > 0 and depth or nil,
    calls = #names > 0 and table.concat(names) or nil, total = 0,
  }
  touch(id)
  place(P .. "batches", id, now)
  place(P .. "batches-open", id, now)
end

-- Close a batch. Return false if there is none. `aborted`: nobody shall be called back.
function batches.close(id, aborted)
  local batch = read(id)
  if not batch then return false end
  if aborted then batch.calls = nil end
  batch.closed = batch.closed or now
  place(P .. "batches-open", id, false)
  touch(id)
  return true
end

-- Pause a batch, or let it go on. `by` names who pauses it, or "". Return whether that changes it.
function batches.set_paused(id, paused, by)
  local batch = read(id)
  if not batch then refuse("REFUSED", "there is no batch " .. id) end
  if (batch.paused ~= nil) == paused then return false end
  batch.paused = paused and digits(now) .. ":" .. by or nil
  touch(id)
  publish_event(paused and "batch.paused" or "batch.resumed", { batch = id, by = by ~= "" and by or nil })
  return true
end

-- Return up to `n` members that have not ended, the latest ones first: jobs; and nested batches.
function batches.members(id, n)
  local jids, ids = {}, {}
  for _, member in ipairs(redis.call("ZREVRANGE", jobs_key(id), 0, n - 1)) do
    local nested = string.match(member, "^\n(.*)$")
    if nested then ids[#ids + 1] = nested else jids[#jids + 1] = member end
  end
  return jids, ids
end

function batches.pending(id)
  local batch = read(id)
  return batch and pending(batch) or 0
end

local function end_of(id, member, klass, state, of_batch)
  if klass and of_batch ~= id then return "cancelled" end -- and put anew by a release without batches
  if klass then return (state == "complete" or state == "failed") and state or nil end
  return redis.call("ZSCORE", P .. "cancelled", member) and "cancelled" or "complete"
end

-- Members keep their scores: a cancel takes the latest ones first, so that none fails with one for which it waits.
local function look_at_members(id)
  local batch, jids = known[id], {}
  touch(id)
  local first = number_of(batch, "looked")
  local members = redis.call("ZRANGE", jobs_key(id), first, first + MEMBERS_LOOKED_AT - 1)
  batch.looked = #members == MEMBERS_LOOKED_AT and first + MEMBERS_LOOKED_AT or nil
  for _, member in ipairs(members) do
    local nested, is_counted = string.match(member, "^\n(.*)$"), left_already(jobs_key(id), member)
    if not nested and not is_counted then
      jids[#jids + 1] = member
    elseif nested and not read(nested) then
      batches.member_ended(id, member, "complete")
    end
  end
  for i, job in ipairs(peek(jids, "klass", "state", "batch")) do
    local state = end_of(id, jids[i], unpack(job))
    if state then batches.member_ended(id, jids[i], state) end
  end
  place(P .. "batches", id, not batch.state and now)
  if batch.state then place(P .. "batches-ended", id, number_of(batch, "ended")) end
end

-- Count members whose end was not counted: a worker of a release without batches has settled them. A batch that a check
-- has repaired, or whose end another call has left, ends here, too. Return whether some of these may be left.
function batches.look_again()
  local found = redis.call(
    "ZRANGEBYSCORE", P .. "batches", "-inf", now - LOOK_AGAIN, "WITHSCORES", "LIMIT", 0, LOOKED_AT)
  for i = 1, #found, 2 do
    if read(found[i]) then look_at_members(found[i]) else place(P .. "batches", found[i], false) end
  end
  return found[2 * LOOKED_AT] == "0"
end
