-- stored.lua: reads the records and payloads of jobs as they are stored, in either density. record.lua changes them. No
-- other file names their keys, except the quick paths and the checks.
--- @include keys
--- @include dense
--- @include prefetched
local completed = {} -- jid -> when it completed | false, of leased ones that were read ahead

-- Return the fields of a hash, and the same as an array of fields and values; nil if there is none.
local function read_fields(key)
  local flat = redis.call("HGETALL", key)
  if #flat == 0 then return nil end
  local fields = { klass = nil, queue = nil, seq = nil, put = nil, size = nil } -- with room for eight
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields, flat
end

-- Read dense records of some jobs in few calls, for what reads these jobs later. MGET answers nil for a hash.
local function read_ahead(jids)
  local unread, keys, leased = {}, {}, {}
  for _, jid in ipairs(jids) do
    if prefetched[jid] == nil then
      unread[#unread + 1], keys[#keys + 1], prefetched[jid] = jid, job_key(jid), false
    end
  end
  for first = 1, #keys, 1000 do
    local texts = redis.call("MGET", unpack(keys, first, math.min(first + 999, #keys)))
    for i, text in ipairs(texts) do
      local jid = unread[first + i - 1]
      prefetched[jid] = text
      if text and string.byte(text) ~= 49 then leased[#leased + 1] = jid end
    end
  end
  for first = 1, #leased, 1000 do
    local last = math.min(first + 999, #leased)
    local scores = redis.call("ZMSCORE", P .. "complete", unpack(leased, first, last))
    for i, score in ipairs(scores) do completed[leased[first + i - 1]] = score end
  end
end

-- Return the text of a dense record; false if the record is full, or there is none.
local function dense_text(jid)
  local text = prefetched[jid]
  if text == nil then
    text = redis.call("MGET", job_key(jid))[1]
    prefetched[jid] = text
  end
  return text
end

-- Return the state of a dense record: it is where the job lies. One that was leased runs until it is in `complete`.
local function state_of_dense(jid, fields)
  if not fields.owner then return nil end
  local when = completed[jid]
  if when == nil then when = redis.call("ZSCORE", P .. "complete", jid) end
  return when and "complete" or "running"
end

-- Return the stored fields of a job; nil if there is none. For a dense record also its payload, unless that lies
-- beside, and its text.
local function stored_job(jid)
  local text = dense_text(jid)
  if not text then return (read_fields(job_key(jid))) end
  local fields, payload = dense.fields_of(text)
  if not fields then error({ err = "WRONGTYPE job:" .. jid .. " holds a string that is no record" }) end
  fields.state = state_of_dense(jid, fields)
  return fields, payload, text
end

-- Return the stored fields of a job, the same as an array of fields and values, and its payload, unless it lies beside.
local function stored_row(jid)
  if not dense_text(jid) then return read_fields(job_key(jid)) end
  local flat, fields, payload = {}, stored_job(jid)
  for _, name in ipairs(dense.FIELDS) do
    if fields[name] then
      flat[#flat + 1] = name
      flat[#flat + 1] = fields[name]
    end
  end
  return fields, flat, payload
end

-- Return some stored fields of some jobs: for each job an array of their values, false for one that it has not.
local function peek(jids, ...)
  local found = {}
  read_ahead(jids)
  for i, jid in ipairs(jids) do
    local values = {}
    if prefetched[jid] then
      local fields = stored_job(jid)
      for at, name in ipairs({ ... }) do values[at] = fields[name] or false end
    else
      values = redis.call("HMGET", job_key(jid), ...)
    end
    found[i] = values
  end
  return found
end

-- Return the payload that lies beside a record; false if there is none.
local function data_beside(jid) return redis.call("GET", P .. "data:" .. jid) end
