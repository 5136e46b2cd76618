-- record.lua: the records of jobs: tables of their fields and their jid. Each is read once, changed in place, and
-- commit() writes the differences once. Payloads are read and replaced beside them.
--- @include clock
--- @include plan
--- @include stored
local records, patches = {}, {}
local UNWRITTEN = {}
local holders = {} -- jid -> the worker from which this script has taken it
local holds = {}   -- jid -> for how many ms that worker had held it

local function adopt(jid, fields)
  local rec = { jid = jid, was = fields or UNWRITTEN }
  for field, value in pairs(rec.was) do rec[field] = value end
  for field, value in pairs(patches[jid] or {}) do rec[field] = value end
  patches[jid], records[jid] = nil, rec
  return rec
end

-- Return the record of a job with this script's changes; nil if there is none.
local function read_job(jid)
  if records[jid] == nil then
    local fields = stored_job(jid)
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

-- Change some fields of a record that need not be read whole.
local function patch(jid, fields)
  local known = records[jid] or patches[jid]
  if not known then
    patches[jid] = fields
    return
  end
  for field, value in pairs(fields) do known[field] = value end
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
  local set, unset = { key }, { key }
  for field, value in pairs(fields) do
    if field ~= "jid" and field ~= "was" and tostring(value) ~= was[field] then
      set[#set + 1] = field
      set[#set + 1] = value
    end
  end
  for field in pairs(was) do
    if fields[field] == nil then unset[#unset + 1] = field end
  end
  if #set > 1 then set_fields(set) end
  if #unset > 1 then del_fields(unset) end
end

-- Return whether a job has more than its record and data, or its end takes more than that of others.
local function is_special(rec)
  return rec.kin or rec.noted or rec.tagged or rec.tracked or rec.limit or rec.unique or rec.expires or rec.once
    or rec.persistent or rec.awaited or rec.progress or rec.saved
end

-- Retention deletes a completed job without reading it: the score says whether there is more than record and data.
local function special_score(when) return math.floor(when) + 0.5 end

local function mark_special(jid)
  local when = (zsets[P .. "complete"] or {})[jid] or redis.call("ZSCORE", P .. "complete", jid)
  if when then place(P .. "complete", jid, special_score(when)) end
end

finish_with(function()
  for jid, fields in pairs(patches) do plan_new(job_key(jid), fields) end
  for jid, rec in pairs(records) do
    if rec then
      --       A completion that does not read the whole record must see that there is more than record and data.
      rec.special = is_special(rec) and 1 or nil
      if rec.was == UNWRITTEN then plan_new(job_key(jid), rec) else plan_fields(job_key(jid), rec, rec.was) end
      if rec.state == "complete" and rec.special and not rec.was.special then mark_special(jid) end
    end
  end
end)

-- Return the payload of a job with this script's changes; false if there is none.
local function data_of(jid) return strings[P .. "data:" .. jid] or stored_data(jid) end

-- Return those of some jobs. One of a foreign type counts as missing.
local function all_data_of(jids)
  local found = all_stored_data(jids)
  for i, jid in ipairs(jids) do found[i] = strings[P .. "data:" .. jid] or found[i] end
  return found
end

-- Give a job a payload. `kind`: "json", "bytes", or "entry" for an entry that contains it.
local function set_data(rec, kind, data)
  rec.bytes, rec.size = kind == "bytes" and 1 or kind == "entry" and kind or nil, #data > 1024 and #data or nil
  store(P .. "data:" .. rec.jid, data)
end

-- Plan a failed job, of an entry that no put accepts, where the rest of the plan was dropped.
local function plan_broken_job(jid, queue, seq, entry)
  plan_new(job_key(jid), {
    klass = "broken", queue = queue, seq = seq, put = now, bytes = 1, entry = 1, size = #entry > 1024 and #entry or nil,
    state = "failed", group = "broken",
  })
  store(P .. "data:" .. jid, entry)
end

-- Delete a job that has only record and data, and for which nothing was planned.
local function erase_plain(jid)
  records[jid] = false
  dropped[#dropped + 1] = job_key(jid)
  dropped[#dropped + 1] = P .. "data:" .. jid
end

-- Delete a job that has left its place, its tags and its kin.
local function erase(jid)
  records[jid], patches[jid] = false, nil
  drop(job_key(jid))
  drop(P .. "data:" .. jid)
  drop(P .. "failure:" .. jid)
  drop(P .. "result:" .. jid)
  drop(P .. "history:" .. jid)
  drop(P .. "progress:" .. jid)
  drop(P .. "saved:" .. jid)
end

-- Its checkpoint was for the stage that has ended.
local function forget_saved(rec)
  rec.saved = nil
  drop(P .. "saved:" .. rec.jid)
end

-- Add a line to the job's history. The first line, and those that follow from the record, are not stored.
local function note(rec, what, fields, when)
  rec.noted = 1
  fields.what, fields.when = what, (when or now) / 1000
  push(P .. "history:" .. rec.jid, cjson.encode(fields), 99)
end

local function owner_of(rec) return string.match(rec.owner or "", "^(%d+):(.*)$") end

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
