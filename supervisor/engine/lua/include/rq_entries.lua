-- rq_entries.lua: what a job of RQ says. Its list has ids, and a hash beside it the job, whose call is compressed JSON:
-- the name of a function, null, the arguments by position, and those by name.
--- @module
--- @include entries
--- @include inflate
local NAME_BYTES = 520 -- the longest name that a door maps, and what is before it
local COST = 2048 -- as how many bytes an entry counts beside its data, by the time that it takes
local FIELDS = {
  "status", "timeout", "retries_left", "success_callback_name", "failure_callback_name", "stopped_callback_name",
  "webhooks", "repeats_left", "rate_limit_key",
}

local function is_set(value) return value and value ~= "" end

local function why_of_workers(...)
  local success, failure, stopped, webhooks, repeats, rate_limit = ...
  if is_set(success) or is_set(failure) or is_set(stopped) or is_set(webhooks) then
    return "callbacks and webhooks are for RQ's own worker"
  end
  if (tonumber(repeats) or 0) > 0 then return "repeats are for RQ's own worker" end
  if is_set(rate_limit) then return "rate limits are for RQ's own worker" end
end

-- Return the name of the function; nil if the data are no compressed JSON of RQ.
local function name_of(data)
  local first = inflate.first_string(data, NAME_BYTES)
  local name = first and string.match(first, '^%[%s*"(.+)"$')
  if not name or not string.find(name, "\\", 1, true) then return name end
  local found = entries.parsed('["' .. name .. '"]', "[")
  return found and found[1]
end

function rq_entries.key_of(source, id) return string.match(source, "^(.-):queue:") .. ":job:" .. id end

-- Return what an entry says, as door_entries has it; nil, why not, and as how many bytes it counts for an invalid one;
-- false if there is no such job, whose id RQ's worker drops, too. One that has ended was put back by a scheduler of RQ
-- which has read it before.
function rq_entries.read(source, id)
  if #id > entries.MOST_DECODED then return nil, "its id is too large: " .. #id .. " bytes" end
  local key = rq_entries.key_of(source, id)
  local size = redis.pcall("HSTRLEN", key, "data")
  if type(size) ~= "number" then return nil, "the key of its job holds no hash" end
  if size > entries.MOST_DECODED then return nil, "it is too large: " .. size .. " bytes" end
  local found = redis.call("HMGET", key, unpack(FIELDS))
  if size == 0 or found[1] == "finished" or found[1] == "canceled" then return false end
  local why = why_of_workers(unpack(found, 4))
  if why then return nil, why end
  local data, cost = redis.call("HGET", key, "data"), size + COST
  local klass = name_of(data)
  if not klass then return nil, "its data are no JSON: it needs RQ's JSON serializer", cost end
  local options, timeout_s, retries, left_ms = {}, tonumber(found[2]), tonumber(found[3]), redis.call("PTTL", key)
  if timeout_s then options.timeout = math.max(timeout_s, 0) * 1000 end
  if retries then options.retries = math.max(retries, 0) end
  if left_ms > 0 then options.expires = left_ms end
  return { id = id, data = data, kind = "rq", klass = klass, options = options, cost = cost }
end

-- Return up to `most` jobs of the schedule that are due, and its key. A scheduler of RQ moves them itself.
function rq_entries.due(source, most)
  local prefix, queue = string.match(source, "^(.-):queue:(.*)$")
  local key = prefix .. ":scheduled:" .. queue
  if most <= 0 or redis.pcall("EXISTS", prefix .. ":scheduler-lock:" .. queue) ~= 0
    or not redis.acl_check_cmd("ZREM", key, "") then
    return {}, key
  end
  local ids = redis.pcall("ZRANGE", key, "-inf", now / 1000, "BYSCORE", "LIMIT", 0, most)
  return ids.err and {} or ids, key
end
