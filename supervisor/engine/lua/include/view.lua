-- view.lua: a job as a reader sees it.
--- @include keys
-- What the clock makes of a stored state: a lease that ran out, a time that has come.
local function seen_state(state, expiry, due)
  if state == "running" and expiry and expiry <= now then return "stalled" end
  if state == "scheduled" and due and due <= now then return "waiting" end
  return state or "waiting"
end

-- Array jid, state, expiry in ms | 0, due in ms | 0, data, failure, result, then the record's fields and values.
local function view(jid)
  local flat = redis.call("HGETALL", job_key(jid))
  if #flat == 0 then return false end
  local rec = {}
  for i = 1, #flat, 2 do rec[flat[i]] = flat[i + 1] end
  local running, scheduled = rec.state == "running", rec.state == "scheduled"
  local expiry = running and tonumber(redis.call("ZSCORE", queue_key(rec.queue, "running"), jid))
  local due = scheduled and tonumber(redis.call("ZSCORE", queue_key(rec.queue, "scheduled"), member_of(jid, rec.seq)))
  local texts = redis.call("MGET", P .. "data:" .. jid, P .. "failure:" .. jid, P .. "result:" .. jid)
  return { jid, seen_state(rec.state, expiry, due), expiry or 0, due or 0, texts[1], texts[2], texts[3], unpack(flat) }
end
