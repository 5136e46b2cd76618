-- rq_ends.lua: when a job that came from RQ ends, leaves its hash, its result and the registries as RQ's own worker
-- would, and has the jobs that depend on it go into their queues.
--- @module
local RESULT_S, FAILURE_S = 500, 31536000 -- for which RQ keeps a result and a failure, if the job does not say
local SUCCESSFUL, FAILED = 1, 2 -- kinds of results
local MOST_RESULTS = 10 -- of one job
local MOST_DEPENDENTS, MOST_PARENTS = 1000, 10000 -- that one end releases, and that one call looks at for that
local ENCODED_COST, DEPENDENT_COST, PARENT_COST = 4, 48, 8 -- as how many bytes each counts, by the time that it takes
local DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local PLAIN = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }
local status_of = {} -- by the key of a job: those that end in this call
local read_status = {} -- likewise: those that a job waits for
local waits_for = {} -- by the key of its parents: the one that a job waited for when it was looked at last
local parents_left = MOST_PARENTS

local function plan(...) door_ends.plan(...) end
local function stamp_of(ms) return string.sub(door_ends.iso_of(ms), 1, -7) .. "Z" end

local pair_of = setmetatable({}, { __index = function(pair_of, bits)
  local first, second = math.floor(bits / 64) + 1, bits % 64 + 1
  pair_of[bits] = string.sub(DIGITS, first, first) .. string.sub(DIGITS, second, second)
  return pair_of[bits]
end }) -- the digits of 12 bits

local function base64(bytes)
  local pairs, n, missing = {}, 0, -#bytes % 3
  bytes = bytes .. string.rep("\0", missing)
  for at = 1, #bytes, 3 do
    local a, b, c = string.byte(bytes, at, at + 2)
    local last = b % 16 * 256 + c
    pairs[n + 1], pairs[n + 2], n = pair_of[a * 16 + (b - b % 16) / 16], pair_of[last], n + 2
  end
  local text = table.concat(pairs)
  return string.sub(text, 1, #text - missing) .. string.rep("=", missing)
end

-- Return a text of at most 65535 bytes as zlib stores what cannot be compressed.
local function zlib(text)
  local low, high = 1, 0
  for i = 1, #text do
    low = (low + string.byte(text, i)) % 65521
    high = (high + low) % 65521
  end
  return "\120\1\1" .. struct.pack("<I2I2", #text, 65535 - #text) .. text .. struct.pack(">I2I2", high, low)
end

local function encoded(bytes)
  moves.told_bytes = moves.told_bytes + ENCODED_COST * #bytes
  return base64(bytes)
end

-- Return the last line of a traceback. The group of a failure is mostly the class of its exception.
local function exception_of(failure)
  local message = string.gsub(moves.message_in(failure), "\\u%x%x%x%x", "?")
  message = string.gsub(message, "\\(.)", function(letter) return PLAIN[letter] or letter end)
  return (string.match(failure, '"group":"([^"\\]*)"') or "Exception") .. ": " .. message
end

-- Return whether a job waits for no other one. RQ passes over those that have gone.
local function is_free(prefix, id, allows_failures)
  local looked_at = 0
  local function is_waited_for(job)
    local status = status_of[job] or read_status[job]
    if status == nil then
      looked_at, status = looked_at + 1, redis.pcall("HGET", job, "status")
      read_status[job] = status
    end
    return status and status ~= "finished" and not (allows_failures and status == "failed")
  end
  local key = prefix .. ":job::" .. id .. ":dependencies"
  if waits_for[key] and is_waited_for(waits_for[key]) then return false end
  local count = redis.pcall("SCARD", key)
  if type(count) ~= "number" or count > parents_left then return false end
  looked_at, waits_for[key] = math.ceil(count / 10), nil
  for _, parent in ipairs(redis.call("SMEMBERS", key)) do
    if is_waited_for(prefix .. ":job:" .. parent) then
      waits_for[key] = prefix .. ":job:" .. parent
      break
    end
  end
  parents_left = parents_left - looked_at
  moves.told_bytes = moves.told_bytes + PARENT_COST * looked_at
  return not waits_for[key]
end

-- Return as how many bytes it counts to look at the jobs that wait for one.
function rq_ends.cost(source, id)
  local count = redis.pcall("SCARD", string.match(source, "^(.-):queue:") .. ":job:" .. id .. ":dependents")
  return type(count) == "number" and DEPENDENT_COST * math.min(count, MOST_DEPENDENTS) or 0
end

-- Have the jobs that wait for one go into their queues, if they wait for no other one.
local function release_dependents(prefix, id, has_failed)
  local dependents = prefix .. ":job:" .. id .. ":dependents"
  local found = redis.pcall("SRANDMEMBER", dependents, MOST_DEPENDENTS)
  for _, one in ipairs(found) do
    local job = prefix .. ":job:" .. one
    local status, queue, allows_failures, at_front, ttl_s =
      unpack(redis.pcall("HMGET", job, "status", "origin", "allow_dependency_failures", "enqueue_at_front", "ttl"))
    allows_failures = allows_failures == "1"
    if status == "deferred" and type(queue) == "string" and (allows_failures or not has_failed)
      and is_free(prefix, one, allows_failures) then
      local list = prefix .. ":queue:" .. queue
      plan("SREM", dependents, one)
      plan("ZREM", prefix .. ":deferred:" .. queue, one)
      plan("HSET", job, "status", "queued", "enqueued_at", stamp_of(now))
      if ttl_s then plan("EXPIRE", job, ttl_s) end
      plan("SADD", prefix .. ":queues", list)
      plan(at_front == "1" and "LPUSH" or "RPUSH", list, one)
    end
  end
end

local function plan_end(prefix, queue, id, rec, status, ttl_s, result)
  local job, results = prefix .. ":job:" .. id, prefix .. ":results:" .. id
  local keys = { job, job .. ":dependents", prefix .. ":job::" .. id .. ":dependencies" }
  if ttl_s == 0 then return plan("UNLINK", results, unpack(keys)) end
  local worker = holders[rec.jid] or select(2, owner_of(rec)) or ""
  local started = rec.popped or holds[rec.jid] and now - holds[rec.jid]
  plan("HSET", job, "status", status, "ended_at", stamp_of(now), "last_heartbeat", stamp_of(now), "worker_name", worker)
  if started then plan("HSET", job, "started_at", stamp_of(started)) end
  plan("XADD", results, "MAXLEN", MOST_RESULTS, "*", "worker_name", worker, unpack(result))
  keys[#keys + 1] = results
  for _, key in ipairs(ttl_s > 0 and keys or {}) do plan("EXPIRE", key, ttl_s) end
  --   RQ has these two ways to say that a job stays.
  local for_ever = status == "finished" and "+inf" or ttl_s
  plan("ZADD", prefix .. ":" .. status .. ":" .. queue, ttl_s < 0 and for_ever or math.floor(now / 1000) + ttl_s, id)
end

-- A hash that has gone was deleted by its producer, and one that says so was cancelled.
function rq_ends.tell(rec, state, source, id, said)
  local prefix, queue = string.match(source, "^(.-):queue:(.*)$")
  local job = prefix .. ":job:" .. id
  local found, result_s, failure_s = unpack(redis.pcall("HMGET", job, "status", "result_ttl", "failure_ttl"))
  if not found or found == "canceled" then return end
  if state == "cancelled" then
    plan("HSET", job, "status", "canceled")
    plan("ZADD", prefix .. ":canceled:" .. queue, math.floor(now / 1000), id)
    return
  end
  local has_failed = state == "failed"
  local status = has_failed and "failed" or "finished"
  status_of[job] = status
  release_dependents(prefix, id, has_failed)
  plan("ZREM", prefix .. ":failed:" .. queue, id)
  local result, ttl_s = { "type", SUCCESSFUL }, tonumber(result_s) or RESULT_S
  if has_failed then
    result = { "type", FAILED, "exc_string", encoded(zlib(exception_of(said))) }
    ttl_s = tonumber(failure_s) or FAILURE_S
  elseif said ~= "" and said ~= "null" then
    result = { "type", SUCCESSFUL, "return_value", encoded(said) }
  end
  plan_end(prefix, queue, id, rec, status, ttl_s, result)
end
