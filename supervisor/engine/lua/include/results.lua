-- results.lua: what ended jobs leave to the jobs that depended on them: their results and failures. parents:<child> has
-- the parents in their order. readers:<parent> has the children that were freed by its end, or were put after it. A
-- parent that goes before one of these has completed leaves its result in keptresult:, or its failure in
-- keptfailure:.
--- @module
--- @include chunks
--- @include clock
--- @include plan
--- @include stored
local LOOKED_AT, READ_AT_ONCE = 100, 1000 -- kept jobs, and readers of all of them, in one sweep
local MANY_READERS, STRUCK_AT_ONCE = 1000, 10
local looked_at = {} -- at how many readers of each job this call has looked
local PAUSE = 60000 -- ms until a sweep looks again at what is still needed

-- A new stage of a job begins: it finds the results of these jobs, in this order.
function results.set_parents(rec, parents)
  if rec.parents then drop(P .. "parents:" .. rec.jid) end
  rec.parents = #parents > 0 and 1 or nil
  if rec.parents then store(P .. "parents:" .. rec.jid, table.concat(parents, "\n")) end
end

-- Return the parents whose results a job finds, in their order.
function results.parents_of(rec)
  return rec.parents and lines_of(redis.call("GET", P .. "parents:" .. rec.jid) or "") or {}
end

-- Drop what an earlier job of the parent's jid has left.
function results.expect_from(parent)
  if parent.kin or not score_of(P .. "kept", parent.jid) then return end
  drop(P .. "keptresult:" .. parent.jid)
  drop(P .. "keptfailure:" .. parent.jid)
  place(P .. "kept", parent.jid, false)
end

-- Strike off readers that have completed or gone, and no more than `most`. Return how many it has looked at, and
-- whether one of them still needs the results.
local function strike_readers(jid, most)
  local key, first = P .. "readers:" .. jid, looked_at[jid] or 0
  local readers = redis.call("ZRANGE", key, first, first + most - 1)
  looked_at[jid] = first + #readers
  for i, job in ipairs(peek(readers, "klass", "state")) do
    local klass, state = unpack(job)
    if klass and state ~= "complete" then return i, true end
    place(key, readers[i], false)
  end
  return #readers, false
end

-- A parent has ended, and the child may go on.
function results.leave_to(child_jid, parent_jid)
  local key = P .. "readers:" .. parent_jid
  if redis.call("ZCARD", key) >= MANY_READERS then strike_readers(parent_jid, STRUCK_AT_ONCE) end
  place(key, child_jid, now)
end

-- The child goes on without a parent that is deleted.
function results.leave_failure_to(child_jid, parent_jid, failure)
  results.leave_to(child_jid, parent_jid)
  store(P .. "keptfailure:" .. parent_jid, failure)
  place(P .. "kept", parent_jid, now + PAUSE)
end

-- Keep the result of a job that has or had children, and that completes without a record.
function results.keep_new(jid, result)
  drop(P .. "keptfailure:" .. jid) -- of a try before
  drop(P .. "keptresult:" .. jid)
  if result ~= "" then store(P .. "keptresult:" .. jid, result) end
  place(P .. "kept", jid, now + PAUSE)
end

-- Return which of these jobs have or had children, by jid.
function results.needed_of(jids)
  local keys, needed = {}, {}
  for i, jid in ipairs(jids) do keys[2 * i - 1], keys[2 * i] = P .. "readers:" .. jid, P .. "dependents:" .. jid end
  local is_any = count_existing(keys) > 0
  for i, jid in ipairs(jids) do
    local readers, dependents = keys[2 * i - 1], keys[2 * i]
    needed[jid] = is_any and redis.call("EXISTS", readers, dependents) > 0 or zsets[readers] or zsets[dependents]
  end
  return needed
end

-- Keep the result and the failure of a job whose record is deleted.
function results.keep(jid)
  for from, to in pairs({ ["result:"] = "keptresult:", ["failure:"] = "keptfailure:" }) do
    if redis.call("EXISTS", P .. from .. jid) == 1 then
      rename(P .. from .. jid, P .. to .. jid)
    end
  end
  place(P .. "kept", jid, now + PAUSE)
end

-- Delete what no job needs any more, as far as one call should look. Return whether there may be more.
function results.release()
  local room, found = READ_AT_ONCE, redis.call("ZRANGEBYSCORE", P .. "kept", "-inf", now, "LIMIT", 0, LOOKED_AT)
  for _, jid in ipairs(found) do
    if room <= 0 then return true end
    local n, is_needed = strike_readers(jid, room)
    room = room - n
    if is_needed or redis.call("EXISTS", P .. "dependents:" .. jid) == 1 then
      place(P .. "kept", jid, now + PAUSE)
    elseif room > 0 then
      drop(P .. "keptresult:" .. jid)
      drop(P .. "keptfailure:" .. jid)
      if redis.call("EXISTS", job_key(jid)) == 0 then drop(P .. "readers:" .. jid) end
      place(P .. "kept", jid, false)
    end
  end
  return #found == LOOKED_AT
end
