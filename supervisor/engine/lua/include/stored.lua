-- stored.lua: reads the records and payloads of jobs as they are stored. record.lua changes them. No other file names
-- their keys, except the quick paths and the checks.
--- @include keys
--- @include prefetched
local function flat_fields(jid) return prefetched[job_key(jid)] or redis.call("HGETALL", job_key(jid)) end

-- Return the fields of a hash; nil if there is none.
local function fields_in(flat)
  if #flat == 0 then return nil end
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

local function read_fields(key) return fields_in(redis.call("HGETALL", key)) end

-- Return the stored fields of a job, and the same as a flat array; nil if there is no such job.
local function stored_job(jid)
  local flat = flat_fields(jid)
  return fields_in(flat), flat
end

-- Return some stored fields of some jobs: for each job an array of their values, false for one that it has not.
local function peek(jids, ...)
  local found = {}
  for i, jid in ipairs(jids) do found[i] = redis.call("HMGET", job_key(jid), ...) end
  return found
end

-- Return the stored payload of a job; false if there is none.
local function stored_data(jid) return redis.call("GET", P .. "data:" .. jid) end

-- Return the stored payloads of some jobs. One of a foreign type counts as missing.
local function all_stored_data(jids)
  local keys = {}
  for i, jid in ipairs(jids) do keys[i] = P .. "data:" .. jid end
  return redis.call("MGET", unpack(keys))
end
