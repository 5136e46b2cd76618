#!lua flags=allow-oom
-- settle.lua — end a batch of leases, each in its own way.
--
-- Called by: commands.settle (supervisor/engine/commands.py)
-- Holds:     INV-3 only the current token and worker may settle, and once; INV-6 three separate counts
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   number of the exchange; "" = none. The last one again changes nothing and is answered as before; a smaller
--           one is late: all its outcomes are stale.
-- ARGV[4..] per outcome: verb, jid, token, and the verb's own
--           complete   result as JSON | ""
--           retry      delay in ms | "", group | "", default retries | "", failure as JSON
--           fail       group, failure as JSON
--           release    "1" if the job had started else ""
--           died       reason, default deaths allowed | "", failure as JSON
--           unknown    delay in ms
--
-- Returns   one string, the answers joined by commas: complete, fail, release "1" or "0" (stale); retry "=" and the
--           retries remaining; died, unknown the new state; nothing for a stale retry, died, unknown.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include clock
--- @include death
local worker, number = ARGV[2], tonumber(ARGV[3])
local ARGUMENTS = { complete = 1, retry = 4, fail = 2, release = 1, died = 3, unknown = 1 }
local STALE = { complete = "0", fail = "0", release = "0", retry = "", died = "", unknown = "" }
local DEFAULT_RETRIES = 5

local answers, settled, completed, failed = {}, {}, {}, 0
local history_s, history_count = setting("jobs-history"), setting("jobs-history-count")
local keep = history_s > 0 and history_count > 0

local function fail_in(rec, group, failure)
  to_failed(rec, group, failure)
  failed = failed + 1
end

local verbs = {}

-- The one outcome that comes by the ten thousand: it reads two fields and touches the record once.
function verbs.complete(jid, queue, at)
  place(queue_key(queue, "running"), jid, false)
  place(P .. "held:" .. worker, jid, false)
  if not keep then
    drop(job_key(jid))
    drop(P .. "data:" .. jid)
    drop(P .. "failure:" .. jid)
    return "1"
  end
  set_fields({ job_key(jid), "state", "complete" })
  del_fields({ job_key(jid), "owner", "started", "turn" })
  place(P .. "complete", jid, now)
  completed[#completed + 1] = jid
  if ARGV[at] ~= "" then store(P .. "result:" .. jid, ARGV[at]) end
  return "1"
end

function verbs.retry(rec, at)
  local delay, group, retries, failure = unpack(ARGV, at, at + 3)
  rec.failures, rec.unknown, rec.turn = (tonumber(rec.failures) or 0) + 1, nil, nil
  local remaining = (tonumber(rec.retries) or tonumber(retries) or DEFAULT_RETRIES) - rec.failures
  delay = tonumber(delay) or 0
  if remaining < 0 then
    fail_in(rec, group ~= "" and group or "failed-retries-" .. rec.queue, failure)
    return "=" .. remaining
  end
  store(P .. "failure:" .. rec.jid, failure)
  if delay > 0 then to_scheduled(rec, now + delay) else to_waiting(rec) end
  return "=" .. remaining
end

function verbs.fail(rec, at)
  fail_in(rec, ARGV[at], ARGV[at + 1])
  return "1"
end

function verbs.release(rec, at)
  if ARGV[at] == "1" then
    rec.interruptions, rec.unknown = (tonumber(rec.interruptions) or 0) + 1, nil
  end
  to_front(rec)
  return "1"
end

function verbs.died(rec, at)
  local state = die(rec, ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2])
  if state == "waiting" then to_front(rec) end
  if state == "failed" then failed = failed + 1 end
  return state
end

-- No worker here knows the job's klass: a newer one may, so it waits and comes back, up to a limit.
function verbs.unknown(rec, at)
  rec.unknown = tonumber(rec.unknown) or now
  if now - rec.unknown < setting_ms("unknown-for", rec.queue) then
    rec.turn = nil
    to_scheduled(rec, now + ARGV[at])
    return "scheduled"
  end
  fail_in(rec, "unknown-handler", cjson.encode({
    group = "unknown-handler", message = "no worker has a handler named " .. rec.klass,
    when = now / 1000, worker = worker,
  }))
  return "failed"
end

local function settle(verb, jid, token, at)
  local lease = redis.call("HMGET", job_key(jid), "owner", "queue")
  if lease[1] ~= token .. ":" .. worker or settled[jid] then return STALE[verb] end
  settled[jid] = true
  if verb == "complete" then return verbs.complete(jid, lease[2], at) end
  local rec = read_job(jid)
  leave(rec)
  return verbs[verb](rec, at)
end

-- Ids beyond a set's limits of age and number, oldest first; at most so many that no settle takes long.
local function surplus(key, added, age_s, most)
  local aged = age_s > 0 and redis.call("ZCOUNT", key, "-inf", now - age_s * 1000) or 0
  local surplus_count = redis.call("ZCARD", key) + added - most
  local n = math.min(math.max(aged, surplus_count), 2 * #answers + 16)
  return n > 0 and redis.call("ZRANGE", key, 0, n - 1) or {}
end

local function prune_completed()
  for _, jid in ipairs(surplus(P .. "complete", #completed, history_s, history_count)) do
    place(P .. "complete", jid, false)
    forget(jid)
  end
end

local function prune_failed()
  local old = surplus(P .. "failed", failed, setting("failed-history"), setting("failed-history-count"))
  for _, jid in ipairs(old) do
    local rec = read_job(jid)
    if rec and rec.state == "failed" then
      leave(rec)
      forget(jid)
    else
      phantom(P .. "failed", jid, jid)
    end
  end
  if #old > 0 then raise("failed-dropped", #old) end
end

local exchange = P .. "worker:" .. worker
local stored = number and redis.call("HMGET", exchange, "number", "settled", "answers")
if stored and tonumber(stored[2]) == number then return stored[3] end
local late = stored and number <= (tonumber(stored[1]) or -1)

local at = 4
while at <= #ARGV do
  local verb = ARGV[at]
  answers[#answers + 1] = late and STALE[verb] or settle(verb, ARGV[at + 1], ARGV[at + 2], at + 3)
  at = at + 3 + ARGUMENTS[verb]
end
local reply = table.concat(answers, ",")
if late then return reply end

if #completed > 0 then prune_completed() end
if failed > 0 then prune_failed() end
if number then
  set_fields({ exchange, "number", number, "settled", number, "answers", reply })
  write("PEXPIRE", exchange, setting_ms("max-worker-age"))
end
commit()
return reply
