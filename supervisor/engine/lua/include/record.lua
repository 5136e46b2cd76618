-- record.lua: the records of jobs: tables of their fields and their jid. Each is read once, changed in place, and
-- commit() writes the differences once, in the density that suffices. Payloads are read and replaced beside them.
--- @include clock
--- @include plan
--- @include stored
local records = {}
local UNWRITTEN = {}
local payloads = {} -- jid -> the payload of a dense record, or the one that this script gives to a job
local texts = {}    -- jid -> the dense record as it is stored
local replaced = {} -- jid -> whether this script gives the job a payload
local holders = {} -- jid -> the worker from which this script has taken it
local holds = {}   -- jid -> for how many ms that worker had held it

local function adopt(jid, fields)
  --   A table that names its fields is made with room for them: to grow takes longer than to fill it.
  local rec = {
    jid = jid, was = fields or UNWRITTEN, klass = nil, queue = nil, seq = nil, put = nil, state = nil, owner = nil,
    popped = nil,
  }
  for field, value in pairs(rec.was) do rec[field] = value end
  records[jid] = rec
  return rec
end

-- Return the record of a job with this script's changes; nil if there is none.
local function read_job(jid)
  if records[jid] == nil then
    local fields, payload, text = stored_job(jid)
    payloads[jid], texts[jid] = payload, text
    if fields then return adopt(jid, fields) end
    records[jid] = false
  end
  return records[jid] or nil
end

local tracks

-- A tracked jid stays tracked when its job is put anew.
local function create_job(jid)
  local rec = adopt(jid)
  if tracks == nil then tracks = redis.call("EXISTS", P .. "tracked-jobs") == 1 end
  rec.tracked = tracks and redis.call("ZSCORE", P .. "tracked-jobs", jid) and 1 or nil
  return rec
end

-- A hash that was empty is written as it is.
local function plan_new(key, fields)
  local set = { key }
  for field, value in pairs(fields) do
    if field ~= "jid" and field ~= "was" then
      set[#set + 1] = field
      set[#set + 1] = value
    end
  end
  set_fields(set)
end

local function plan_fields(key, fields, was)
  local set, n, unset = { key, nil, nil, nil, nil, nil, nil, nil, nil }, 1, nil -- with room for what a lease writes
  for field, value in pairs(fields) do
    local before = was[field]
    if value ~= before and field ~= "jid" and field ~= "was" and tostring(value) ~= before then
      set[n + 1], set[n + 2], n = field, value, n + 2
    end
  end
  for field in pairs(was) do
    if fields[field] == nil then
      unset = unset or { key }
      unset[#unset + 1] = field
    end
  end
  if n > 1 then set_fields(set) end
  if unset then del_fields(unset) end
end

-- Return whether a job has more than its record and data, or its end takes more than that of others.
local function is_special(rec)
  return rec.kin or rec.noted or rec.tagged or rec.tracked or rec.limit or rec.unique or rec.expires or rec.once
    or rec.persistent or rec.awaited or rec.progress or rec.saved or rec.parents
end

-- Retention deletes a completed job without reading it: the score says whether there is more than record and data.
local function special_score(when) return math.floor(when) + 0.5 end

local function owner_of(rec) return string.match(rec.owner or "", "^(%d+):(.*)$") end

do -- a script has at most 200 locals outside of blocks
  local function mark_special(jid)
    local when = (zsets[P .. "complete"] or {})[jid] or redis.call("ZSCORE", P .. "complete", jid)
    if when then place(P .. "complete", jid, special_score(when)) end
  end

  -- The score of a lease says whether the record is dense: such a job can complete without being read.
  local function plan_lease(rec, was_dense, is_dense)
    local token, worker = owner_of(rec)
    local key = P .. "held:" .. (worker or "")
    local is_new = zsets[key] and zsets[key][rec.jid]
    if token and (is_new or was_dense and not is_dense) then
      place(key, rec.jid, is_dense and token or token .. ".5")
    end
  end

  -- Plan a record that is new, or was dense, as a string if that suffices. Return whether it does.
  local function plan_densely(rec, was_dense)
    if not dense.can_hold(rec) then return false end
    local jid, payload = rec.jid, payloads[rec.jid]
    local text = dense.text_of(rec, rec.size and tostring(rec.size) or payload, rec.size)
    if text ~= texts[jid] then store(job_key(jid), text) end
    if replaced[jid] and rec.size then
      store(P .. "data:" .. jid, payload)
    elseif replaced[jid] and was_dense and rec.was.size then
      drop(P .. "data:" .. jid)
    end
    return true
  end

  -- Plan a full record: a hash, and the payload beside it. Such a record stays full.
  local function plan_fully(rec, was_dense)
    local jid, payload = rec.jid, payloads[rec.jid]
    if was_dense then drop(job_key(jid)) end
    if was_dense or rec.was == UNWRITTEN then
      plan_new(job_key(jid), rec)
    else
      plan_fields(job_key(jid), rec, rec.was)
    end
    if payload and (was_dense or replaced[jid]) then store(P .. "data:" .. jid, payload) end
    if rec.state == "complete" and is_special(rec) and not is_special(rec.was) then mark_special(jid) end
  end

  finish_with(function()
    for jid, rec in pairs(records) do
      if rec then
        local was_dense = texts[jid] ~= nil
        local is_dense = (was_dense or rec.was == UNWRITTEN) and plan_densely(rec, was_dense)
        if not is_dense then plan_fully(rec, was_dense) end
        if rec.state == "running" then plan_lease(rec, was_dense, is_dense) end
      end
    end
  end)
end

-- Return the dense record of a waiting job as it was read; nil if there is none, or it has another payload now.
local function dense_as_read(rec) return not rec.state and not replaced[rec.jid] and texts[rec.jid] or nil end

-- Return the payload of a job with this script's changes; false if there is none.
local function data_of(jid)
  read_job(jid)
  return payloads[jid] or data_beside(jid)
end

-- Return those of some jobs that were read. One of a foreign type counts as missing.
local function all_data_of(jids)
  local found, keys, beside = {}, {}, {}
  for i, jid in ipairs(jids) do
    found[i] = payloads[jid] or false
    if not found[i] then keys[#keys + 1], beside[#beside + 1] = P .. "data:" .. jid, i end
  end
  for at, data in ipairs(#keys > 0 and redis.call("MGET", unpack(keys)) or {}) do found[beside[at]] = data end
  return found
end

-- Give a job a payload, whose shape no worker has refused yet. `kind`: "json", "bytes", or "entry" or the
-- name of a format for what contains it.
local function set_data(rec, kind, data)
  rec.shapes, rec.collected = nil, nil
  rec.bytes = kind == "bytes" and 1 or kind ~= "json" and kind or nil
  rec.size = #data > dense.INLINE_BYTES and #data or nil
  payloads[rec.jid], replaced[rec.jid] = data, true
end

-- Plan a failed job, of an entry that no put accepts, where the rest of the plan was dropped.
local function plan_broken_job(jid, queue, seq, entry)
  plan_new(job_key(jid), {
    klass = "broken", queue = queue, seq = seq, put = now, bytes = 1, entry = 1,
    size = #entry > dense.INLINE_BYTES and #entry or nil, state = "failed", group = "broken",
  })
  store(P .. "data:" .. jid, entry)
end

local function forget_record(jid) records[jid], texts[jid], payloads[jid], replaced[jid] = false, nil, nil, nil end

-- Delete a job that has left its place, its tags and its kin.
local function erase(jid)
  forget_record(jid)
  drop(job_key(jid))
  drop(P .. "data:" .. jid)
  drop(P .. "failure:" .. jid)
  drop(P .. "result:" .. jid)
  drop(P .. "history:" .. jid)
  drop(P .. "progress:" .. jid)
  drop(P .. "saved:" .. jid)
  drop(P .. "parents:" .. jid)
  drop(P .. "replay:" .. jid)
end

-- Delete a job that has only record and data, and for which nothing was planned.
local function erase_plain(jid)
  forget_record(jid)
  dropped[#dropped + 1] = job_key(jid)
  dropped[#dropped + 1] = P .. "data:" .. jid
end

-- A start stores for the next one of its stage, which has ended.
local function forget_starts(rec)
  if rec.saved then drop(P .. "saved:" .. rec.jid) end
  if rec.replay then drop(P .. "replay:" .. rec.jid) end
  rec.saved, rec.replay, rec.signals, rec.steps = nil, nil, nil, nil
end

-- Add a line to the job's history. The first line, and those that follow from the record, are not stored.
local function note(rec, what, fields, when)
  rec.noted = 1
  fields.what, fields.when = what, (when or now) / 1000
  push(P .. "history:" .. rec.jid, cjson.encode(fields), 99)
end

-- Store the lines of its last lease and completion that follow from the record, before the record loses them.
local function note_present(rec)
  local _, worker = owner_of(rec)
  if not worker then return end
  if not rec.told then note(rec, "popped", { worker = worker }, rec.popped) end
  rec.told = rec.told or "popped"
  if rec.state == "complete" and rec.told == "popped" then
    local when = redis.call("ZSCORE", P .. "complete", rec.jid)
    note(rec, "completed", {}, when and math.floor(when))
    rec.told = "completed"
  end
end

-- Store the failure, which is kept beside the record.
local function failure_of(group, message, worker, more)
  local failure = more or {}
  failure.group, failure.message, failure.worker, failure.when = group, message, worker, now / 1000
  return cjson.encode(failure)
end
