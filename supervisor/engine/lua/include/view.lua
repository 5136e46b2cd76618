-- view.lua: a job as queries show it.
--- @include keys
--- @include started
--- @include shown
--- @include stored

-- Return an array: jid, state, expiry in ms | 0, due in ms | 0, completed in ms | 0, data, failure, result, tags ("\n"
-- between) | nil, array of history, array of dependencies, array of dependents, progress | nil, start deadline in ms |
-- 0, checkpoint | nil, then the record's fields and values. Data, failure, result, history, dependencies, dependents
-- and checkpoint that are left out are a number: their size.
local view

do -- a script has at most 200 locals outside of blocks
  local VIEWED_KIN = 1000 -- of a job's dependencies and dependents

  -- Return the state that the clock makes of a stored one: a lease has expired, a time has come.
  local function seen_state(state, expiry, due)
    if state == "running" and expiry and expiry <= now then return "stalled" end
    if state == "scheduled" and due and due <= now then return "waiting" end
    return state or "waiting"
  end

  local function kin_of(kind, jid)
    local key = P .. kind .. ":" .. jid
    local n = redis.call("ZCARD", key)
    if answer_room <= 0 and n > 0 then return n end
    local found = redis.call("ZRANGE", key, 0, VIEWED_KIN - 1)
    answer_room = answer_room - 32 * #found
    return found
  end

  local function history_of(jid)
    local key = P .. "history:" .. jid
    local n = redis.call("LLEN", key)
    if answer_room <= 0 and n > 0 then return n end
    local found = redis.call("LRANGE", key, 0, -1)
    for _, line in ipairs(found) do answer_room = answer_room - #line end
    return found
  end

  -- Return the start deadline of a job; 0 if it has passed, or there is none.
  local function start_by(rec)
    if not rec.expires or rec.state == "failed" or rec.state == "complete" or rec.state == "running" then return 0 end
    if has_started(rec) then return 0 end
    return rec.put + rec.expires
  end

  function view(jid)
    local rec, flat, payload = stored_row(jid)
    if not rec then return false end
    local expiry, due, completed = 0, 0, 0
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
    local texts = redis.call("MGET", P .. "tags:" .. jid, P .. "progress:" .. jid)
    return {
      jid, seen_state(state, expiry, due), expiry, due, completed,
      payload and shown(payload, SHOWN) or not payload and text_of(P .. "data:" .. jid, SHOWN),
      text_of(P .. "failure:" .. jid, ANSWER_ROOM),
      text_of(P .. "result:" .. jid, ANSWER_ROOM),
      texts[1],
      history_of(jid),
      state == "depends" and kin_of("dependencies", jid) or {},
      rec.kin and kin_of("dependents", jid) or {},
      texts[2],
      start_by(rec),
      rec.saved and text_of(P .. "saved:" .. jid, ANSWER_ROOM) or false,
      unpack(flat),
    }
  end
end
