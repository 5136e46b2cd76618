-- retention.lua: which ended jobs are kept, and which are deleted.
--- @module
--- @include moves
--- @include remembered
--- @include results
--- @include tagging
-- Return whether one call has removed as many edges and tags as it should.
local function has_removed_enough() return edges.is_spent() or tagging.is_spent() end

-- Return whether one call has ended as many jobs as it should, by what these removed and told other programs.
function retention.is_spent() return has_removed_enough() or moves.told_bytes >= moves.MOST_TOLD end

-- Delete jobs that have left their places, without having read them; with a key those of a sorted set, which leave it
-- only now, as many as one call should.
function retention.erase_all(jids, key)
  if #jids == 0 then return end
  local keys, needed = {}, results.needed_of(jids)
  for i, jid in ipairs(jids) do keys[i] = P .. "tags:" .. jid end
  for i, names in ipairs(redis.call("MGET", unpack(keys))) do
    if key and tagging.is_spent() then return end
    if key then place(key, jids[i], false) end
    if names then
      drop(keys[i])
      tagging.unindex(jids[i], lines_of(names))
    end
    if needed[jids[i]] then results.keep(jids[i]) end
    erase(jids[i])
  end
end

local FIELDS = 400 -- in one call
local MOST_UNHEARD, UNHEARD_MS = 1000, 3600000 -- of those that no worker had, for a log
local cancelled_by, cancelled_jids = {}, {}

-- Remember since when these jobs are gone. Return those that are forgotten for it: the oldest, until the others have
-- room.
local function remember(key, jids)
  local aged = redis.call("ZCOUNT", key, "-inf", now - REMEMBERED_MS)
  local n = math.max(aged, redis.call("ZCARD", key) + #jids - REMEMBERED)
  local old = n > 0 and redis.call("ZRANGE", key, 0, math.min(n, #jids + 16) - 1) or {}
  for _, jid in ipairs(old) do place(key, jid, false) end
  for _, jid in ipairs(jids) do place(key, jid, now) end
  expire(key, REMEMBERED_MS)
  return old
end

local function remember_cancelled()
  local names = P .. "cancelled-by"
  local gone, known = remember(P .. "cancelled", cancelled_jids), {}
  redis.call("HLEN", names) -- a foreign type raises here
  for jid, by in pairs(cancelled_by) do
    gone[#gone + 1] = jid
    if by ~= "" then
      known[#known + 1] = jid
      known[#known + 1] = by
    end
  end
  for i = 1, #gone, FIELDS do del_fields({ names, unpack(gone, i, math.min(i + FIELDS - 1, #gone)) }) end
  for i = 1, #known, FIELDS do set_fields({ names, unpack(known, i, math.min(i + FIELDS - 1, #known)) }) end
  expire(names, REMEMBERED_MS)
end

-- Delete a job that has not ended, in any place; `by` names the actor, or "". Its dependents are handled when all jobs
-- that go with it are gone.
function retention.cancel(rec, by)
  if #cancelled_jids == 0 then finish_with(remember_cancelled) end
  cancelled_by[rec.jid], cancelled_jids[#cancelled_jids + 1] = by, rec.jid
  local _, worker = owner_of(rec)
  publish_job_event("job.cancelled", rec, { worker = worker, by = by ~= "" and by or nil })
  if not worker then
    push(P .. "unheard", table.concat({ rec.jid, rec.queue, rec.klass or "", by }, "\n"), MOST_UNHEARD, UNHEARD_MS)
  end
  moves.take_away(rec)
  moves.ended(rec, "cancelled")
  retention.erase_all({ rec.jid })
end

-- Handle the remaining dependents of the cancelled jobs. Return the jids of the cancelled ones.
function retention.propagate(cancelled, why)
  local jids = {}
  for i, rec in ipairs(cancelled) do
    jids[i] = rec.jid
    if rec.kin then kin.parent_gone(rec.jid, why) end
  end
  return jids
end

-- Return how many ids are beyond a set's limits of age and number; at most `most`, so that no call takes long.
local function surplus(key, added, age_s, count, most)
  local aged = age_s > 0 and redis.call("ZCOUNT", key, "-inf", now - age_s * 1000 + 0.5) or 0
  return math.min(math.max(aged, redis.call("ZCARD", key) + added - count), most)
end

-- A history of 0 seconds keeps nothing.
function retention.prune_completed(added, most)
  local count = keeps_completed() and setting("jobs-history-count") or 0
  local key, special = P .. "complete", {}
  local n = surplus(key, added, setting("jobs-history"), count, most)
  if n <= 0 then return end
  local old, planned = redis.call("ZRANGE", key, 0, n - 1, "WITHSCORES"), zsets[key] or {}
  for i = 1, #old, 2 do
    local jid = old[i]
    if planned[jid] == nil then -- else this script has put it anew
      local is_plain = old[i + 1] % 1 == 0 and not (records[jid] and records[jid].kin) -- got a child by this call
      if is_plain then
        place(key, jid, false)
        erase_plain(jid)
      else
        special[#special + 1] = jid
      end
    end
  end
  retention.erase_all(special, key)
end

-- A failed job that is dropped is counted and remembered, and its dependents must not wait for ever.
function retention.prune_failed(added, most)
  local key, forgotten = P .. "failed", {}
  local n = surplus(key, added, setting("failed-history"), setting("failed-history-count"), most)
  if n <= 0 then return end
  for _, jid in ipairs(redis.call("ZRANGE", key, 0, n - 1)) do
    if has_removed_enough() then break end
    local rec = read_job(jid)
    if (zsets[key] or {})[jid] == false then
      --       this script has put it anew
    elseif rec and rec.state == "failed" then
      forgotten[#forgotten + 1] = jid
      publish_job_event("job.dropped", rec, { group = rec.group })
      rec.batch = nil -- which has counted it as failed
      moves.leave(rec)
      if rec.kin then kin.parent_gone(jid, "was dropped by the failed-history") end
      retention.erase_all({ jid })
    else
      moves.phantom(key, jid, jid)
    end
  end
  if #forgotten == 0 then return end
  raise("failed-dropped", #forgotten)
  remember(P .. "dropped", forgotten)
end
