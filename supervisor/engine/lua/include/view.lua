-- view.lua: a job as a reader sees it.
--- @include keys
--- @include started
local VIEWED_KIN = 1000 -- of a job's dependencies and dependents

-- What the clock makes of a stored state: a lease that ran out, a time that has come.
local function seen_state(state, expiry, due)
  if state == "running" and expiry and expiry <= now then return "stalled" end
  if state == "scheduled" and due and due <= now then return "waiting" end
  return state or "waiting"
end

local function kin_of(kind, jid) return redis.call("ZRANGE", P .. kind .. ":" .. jid, 0, VIEWED_KIN - 1) end

-- By when a job must have been started; 0 if that is past, or it need not.
local function start_by(rec)
  if not rec.expires or rec.state == "failed" or rec.state == "complete" or rec.state == "running" then return 0 end
  if has_started(rec) then return 0 end
  return rec.put + rec.expires
end

-- Array jid, state, expiry in ms | 0, due in ms | 0, completed in ms | 0, data, failure, result, tags ("\n" between) |
-- nil, array of history, array of dependencies, array of dependents, progress | nil, by when it must start in ms | 0,
-- its checkpoint | nil, then the record's fields and values.
local function view(jid)
  local flat = redis.call("HGETALL", job_key(jid))
  if #flat == 0 then return false end
  local rec, expiry, due, completed = {}, 0, 0, 0
  for i = 1, #flat, 2 do rec[flat[i]] = flat[i + 1] end
  local state = rec.state
  if state == "running" then
    expiry = tonumber(redis.call("ZSCORE", queue_key(rec.queue, "running"), jid) or 0)
  elseif state == "scheduled" then
    due = tonumber(redis.call("ZSCORE", queue_key(rec.queue, "scheduled"), member_of(jid, rec.seq)) or 0)
  elseif state == "depends" then
    due = tonumber(rec.due or 0)
  elseif state == "complete" then
    completed = tonumber(redis.call("ZSCORE", P .. "complete", jid) or 0)
  end
  local texts = redis.call("MGET", P .. "data:" .. jid, P .. "failure:" .. jid, P .. "result:" .. jid,
    P .. "tags:" .. jid, P .. "progress:" .. jid)
  return {
    jid, seen_state(state, expiry, due), expiry, due, completed, texts[1], texts[2], texts[3], texts[4],
    redis.call("LRANGE", P .. "history:" .. jid, 0, -1),
    state == "depends" and kin_of("dependencies", jid) or {},
    rec.kin and kin_of("dependents", jid) or {},
    texts[5],
    start_by(rec),
    rec.saved and redis.call("MGET", P .. "saved:" .. jid)[1] or false,
    unpack(flat),
  }
end
