-- door_ends.lua: when a job that came by a door ends, leaves the keys of the other program as its own worker would.
--- @module
--- @include record
--- @include rq_ends
local MOST_FAILED = 1000 -- entries in hworker's list of failed jobs, its own default
local RESULT_S = 86400 -- for which Celery keeps a result by default
local STATS_S = 157680000 -- five years, for which Sidekiq keeps the numbers of a day
local EXPIRED = '"group":"expired"' -- in the failure of a job that has not started in time
-- As how many bytes an end counts beside those that it tells, and an element of a list to search, by the time that they
-- take.
local END_COST, SEARCH_COST = 2048, 0.5
-- Classes of this name are none that a caller of Celery could catch.
local NOT_RAISED = {
  BaseException = true, BaseExceptionGroup = true, ExceptionGroup = true, SystemExit = true, KeyboardInterrupt = true,
  GeneratorExit = true, Ellipsis = true, False = true, None = true, NotImplemented = true, True = true,
}
local ends = {}
door_ends.LEASE = "leasehold" -- in the leases of a redis-work-queue item, while its job lives here
-- Its published clients for Python and Node look at the second one, the others and its documents at the first.
door_ends.LEASES = { ":lease:", ":leased_by_session:" }

-- Have a command on keys of the other program carried out, last of all. An error in it is passed over: no foreign key,
-- and no right to one, may hold up a job.
local function foreign(...)
  local command = { ... }
  for _, word in ipairs(command) do moves.told_bytes = moves.told_bytes + #tostring(word) end
  messages[#messages + 1] = command
end
door_ends.plan = foreign

-- Return the namespace of a Sidekiq, with its colon, and the name of a queue, from the key of its list.
function door_ends.names_in(list)
  local queue = string.match(list, "^queue:(.*)$")
  if queue then return "", queue end
  return string.match(list, "^(.-:)queue:(.*)$")
end

-- Return whether an item of redis-work-queue is still that of our job. Its producer may have added it anew.
function door_ends.has_item(prefix, id)
  return redis.pcall("GET", prefix .. door_ends.LEASES[1] .. id) == door_ends.LEASE
end

-- Return as how many bytes the end of a job counts at least, for scripts that choose their jobs before they end any.
function door_ends.cost(rec)
  local format, source, id = string.match(rec.door, "^([^\n]*)\n([^\n]*)\n(.*)$")
  if format == "rq-json" then return END_COST + rq_ends.cost(source, id) end
  if format ~= "rwq" then return END_COST end
  return END_COST + SEARCH_COST * (tonumber(redis.pcall("LLEN", source .. ":processing")) or 0)
end

-- Return a unix time in ms as Python's isoformat writes it, with the time zone of UTC.
local function iso_of(ms)
  local days, second = math.floor(ms / 86400000), math.floor(ms / 1000) % 86400
  --   Years begin in March, so that a leap day is the last one. 146097 days make 400 years.
  local since = days + 719468
  local era, of_era = math.floor(since / 146097), since % 146097
  local year = math.floor((of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524)
    - math.floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local march = math.floor((5 * of_year + 2) / 153)
  local day, month = of_year - math.floor((153 * march + 2) / 5) + 1, march < 10 and march + 3 or march - 9
  if month <= 2 then year = year + 1 end
  return string.format("%04d-%02d-%02dT%02d:%02d:%02d.%03d000+00:00", year + era * 400, month, day,
    math.floor(second / 3600), math.floor(second / 60) % 60, second % 60, ms % 1000)
end
door_ends.iso_of = iso_of

-- An item that its producer has added anew is not ours. If its entry was dropped, as one of a living job, it comes back
-- now. The oldest items are at the end of `processing`, and mostly end first: where many live here, to search all of it
-- for each would take 300 ms a call.
function ends.rwq(rec, _, prefix, id)
  if door_ends.has_item(prefix, id) then
    local first, second = unpack(door_ends.LEASES)
    foreign("UNLINK", prefix .. ":item:" .. id, prefix .. first .. id, prefix .. second .. id)
    foreign("LREM", prefix .. ":processing", -1, id)
  elseif rec.again then
    foreign("LPUSH", prefix .. ":queue", id)
  end
  rec.again = nil
end

-- Jobs that a sweep or an act fails together, beyond what one call may tell, are listed by us only.
function ends.hworker(rec, state, name, id)
  if state ~= "failed" or moves.told_bytes > moves.MOST_TOLD then return end
  foreign("LPUSH", "hworker-failed-" .. name, '["' .. id .. '",' .. (data_of(rec.jid) or "null") .. "]")
  foreign("LTRIM", "hworker-failed-" .. name, 0, MOST_FAILED - 1)
end

-- The end of a process frees the key of a unique task. A large one is not published: that would take too long.
function ends.worqr(rec, state, list, digest, said)
  local prefix, queue = string.match(list, "^(.*):queues:(.*)$")
  if digest ~= "" then foreign("UNLINK", prefix .. ":uniqueTasks:" .. digest) end
  if state ~= "complete" or (tonumber(rec.size) or 0) > moves.MOST_TOLD then return end
  local _, worker = owner_of(rec)
  local done = cjson.encode({ workerId = worker, task = data_of(rec.jid) or "" })
  if said ~= "" then done = string.sub(done, 1, -2) .. ',"result":' .. said .. "}" end
  foreign("PUBLISH", prefix .. "_" .. queue .. "_done", done)
end

local function count(key, by)
  local of_day = key .. ":" .. string.sub(iso_of(now), 1, 10)
  foreign("INCRBY", key, by)
  foreign("INCRBY", of_day, by)
  foreign("EXPIRE", of_day, STATS_S)
end

-- Sidekiq counts each run. Those before are counted with the last one. A retry that is refused has raised `failures`.
function ends.sidekiq(rec, state, list)
  if state == "cancelled" then return end
  local prefix, failures = door_ends.names_in(list), tonumber(rec.failures) or 0
  local runs = failures + (failures > (tonumber(rec.retries) or 0) and 0 or 1)
  if state == "failed" then failures = runs end
  count(prefix .. "stat:processed", runs)
  if failures > 0 then count(prefix .. "stat:failed", failures) end
end

-- Return the traceback in a failure, as JSON.
local function traceback_in(failure)
  local _, first = string.find(failure, '"traceback":"', 1, true)
  local at = first and string.find(failure, '["\\]', first + 1)
  while at and string.byte(failure, at) ~= 34 do at = string.find(failure, '["\\]', at + 2) end
  return at and string.sub(failure, first, at) or "null"
end

-- Return the class and the module of the exception by which a handler has failed. The class is the group of the
-- failure, and both end the traceback, unless the module is `builtins`.
local function class_in(failure, traceback)
  local class = traceback ~= "null" and string.match(failure, '"group":"(%u[%w_]*)"')
  if not class or NOT_RAISED[class] then return "Exception", "builtins" end
  return class, string.match(traceback, "^.*\\n([%w_.]+)%." .. class .. "[:\\]") or "builtins"
end

local function exception(class, message, module)
  return '{"exc_type":"' .. class .. '","exc_message":["' .. message .. '"],"exc_module":"' .. module .. '"}'
end

-- Return the status that Celery gives a task with this end, its result and its traceback, both as JSON.
local function celery_end(state, said)
  if state == "complete" then return "SUCCESS", said ~= "" and said or "null", "null" end
  if state ~= "failed" or string.find(said, EXPIRED, 1, true) then
    local why = state == "failed" and "expired" or "revoked"
    return "REVOKED", exception("TaskRevokedError", why, "celery.exceptions"), "null"
  end
  local traceback, message = traceback_in(said), moves.message_in(said)
  local class, module = class_in(said, traceback)
  if class == "KeyError" then message = string.match(message, "^'([^'\\]*)'$") or message end -- it is quoted once more
  return "FAILURE", exception(class, message, module), traceback
end

-- The fields and their order are those of Celery's own backend, which leaves a result alone that is a success.
function ends.celery(rec, state, _, id, said)
  local key = "celery-task-meta-" .. id
  local had = id ~= "" and redis.pcall("GETRANGE", key, 0, 31) -- without an id the task ignores its result
  if not had or type(had) == "string" and string.find(had, '^{"status":%s*"SUCCESS"') then return end
  local status, result, traceback = celery_end(state, said)
  local meta = '{"status":"' .. status .. '","result":' .. result .. ',"traceback":' .. traceback
    .. ',"children":[],"date_done":"' .. iso_of(now) .. '",' .. (rec.meta or "")
    .. '"task_id":' .. cjson.encode(id) .. "}"
  foreign("SETEX", key, RESULT_S, meta)
  foreign("PUBLISH", key, meta)
end

-- Dead messages of clients lie in a set, as they were pushed. What is beyond its bound, or was edited, we list alone.
ends["client-lists"] = function(rec, state, source)
  if state ~= "failed" or rec.bytes ~= "client" or moves.told_bytes > moves.MOST_TOLD then return end
  local main, name = string.match(source, "^(.*:)(.*)$")
  local dead = (main or "") .. "dead:" .. (name or source)
  local size = tonumber(redis.pcall("SCARD", dead)) or MOST_FAILED
  if size < MOST_FAILED then foreign("SADD", dead, data_of(rec.jid)) end
end

ends["rq-json"] = function(...) rq_ends.tell(...) end

-- A failed job may be put back, and ends again. Any other one is of no door any more.
function door_ends.tell(rec, state, said)
  local format, source, id = string.match(rec.door, "^([^\n]*)\n([^\n]*)\n(.*)$")
  moves.told_bytes = moves.told_bytes + door_ends.cost(rec)
  if ends[format] then ends[format](rec, state, source, id, said) end
  if state ~= "failed" then rec.door, rec.meta = nil, nil end
end
