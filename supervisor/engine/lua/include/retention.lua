-- retention.lua: what is kept of ended jobs, and what goes.
--- @module
--- @include moves
--- @include tagging
-- Deletes jobs that have left their places, without having read them.
function retention.erase_all(jids)
  if #jids == 0 then return end
  local keys = {}
  for i, jid in ipairs(jids) do keys[i] = P .. "tags:" .. jid end
  for i, names in ipairs(redis.call("MGET", unpack(keys))) do
    if names then
      drop(keys[i])
      tagging.unindex(jids[i], lines_of(names))
    end
    erase(jids[i])
  end
end

-- Deletes a job that has not ended, wherever it lies. Those that wait for it are looked after when all are gone that go
-- with it.
function retention.cancel(rec)
  tell_of("job.cancelled", rec, { worker = select(2, owner_of(rec)) })
  moves.take_away(rec)
  moves.ended(rec)
  retention.erase_all({ rec.jid })
end

-- What that means to those that waited for cancelled jobs, and are still there. Answers the jids of the cancelled ones.
function retention.tell_children(cancelled, why)
  local jids = {}
  for i, rec in ipairs(cancelled) do
    jids[i] = rec.jid
    if rec.kin then kin.parent_gone(rec.jid, why) end
  end
  return jids
end

-- How many ids are beyond a set's limits of age and number; at most `most`, so that no call takes long.
local function surplus(key, added, age_s, count, most)
  local aged = age_s > 0 and redis.call("ZCOUNT", key, "-inf", now - age_s * 1000 + 0.5) or 0
  return math.min(math.max(aged, redis.call("ZCARD", key) + added - count), most)
end

-- With a history of 0 seconds nothing is kept.
function retention.prune_completed(added, most)
  local count = keeps_completed() and setting("jobs-history-count") or 0
  local key, special = P .. "complete", {}
  local n = surplus(key, added, setting("jobs-history"), count, most)
  if n <= 0 then return end
  local old, planned = redis.call("ZRANGE", key, 0, n - 1, "WITHSCORES"), zsets[key] or {}
  for i = 1, #old, 2 do
    local jid = old[i]
    if planned[jid] == nil then -- else this script has put it anew
      place(key, jid, false)
      if old[i + 1] % 1 == 0 then erase_plain(jid) else special[#special + 1] = jid end
    end
  end
  retention.erase_all(special)
end

-- A failed job that is dropped is counted, and what waits for it must not wait for ever.
function retention.prune_failed(added, most)
  local key, dropped_count = P .. "failed", 0
  local n = surplus(key, added, setting("failed-history"), setting("failed-history-count"), most)
  if n <= 0 then return end
  for _, jid in ipairs(redis.call("ZRANGE", key, 0, n - 1)) do
    local rec = read_job(jid)
    if (zsets[key] or {})[jid] == false then
      -- this script has put it anew
    elseif rec and rec.state == "failed" then
      dropped_count = dropped_count + 1
      tell_of("job.dropped", rec, { group = rec.group })
      moves.leave(rec)
      if rec.kin then kin.parent_gone(jid, "was dropped by the failed-history") end
      retention.erase_all({ jid })
    else
      moves.phantom(key, jid, jid)
    end
  end
  if dropped_count > 0 then raise("failed-dropped", dropped_count) end
end
