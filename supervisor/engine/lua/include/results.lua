-- results.lua: what ended jobs leave to the jobs that depended on them: their results and failures. parents:<child> has
-- the parents in their order. readers:<parent> has the children that were freed by its end, or were put after it. A
-- parent that goes before one of these has completed leaves its result in keptresult:, or its failure in
-- keptfailure:.
--- @module
--- @include chunks
--- @include clock
--- @include plan
--- @include stored
local LOOKED_AT, LOOKED_AT_READERS = 100, 10 -- in one sweep
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

-- A job is a child from now on of one that may be the next of its jid: what that one has left is over.
function results.expect_from(parent)
  if parent.kin then return end
  drop(P .. "keptresult:" .. parent.jid)
  drop(P .. "keptfailure:" .. parent.jid)
  place(P .. "kept", parent.jid, false)
end

-- A parent has ended, and the child may go on.
function results.leave_to(child_jid, parent_jid) place(P .. "readers:" .. parent_jid, child_jid, now) end

-- The child goes on without a parent that is deleted.
function results.leave_failure_to(child_jid, parent_jid, failure)
  results.leave_to(child_jid, parent_jid)
  store(P .. "keptfailure:" .. parent_jid, failure)
  place(P .. "kept", parent_jid, now + PAUSE)
end

-- A job that has or had children completes, and its record is not kept.
function results.keep_new(jid, result)
  if result ~= "" then store(P .. "keptresult:" .. jid, result) end
  place(P .. "kept", jid, now + PAUSE)
end

-- Return which of these jobs have or had children, by jid.
function results.needed_of(jids)
  local keys, needed = {}, {}
  for i, jid in ipairs(jids) do keys[2 * i - 1], keys[2 * i] = P .. "readers:" .. jid, P .. "dependents:" .. jid end
  if count_existing(keys) == 0 then return needed end
  for i, jid in ipairs(jids) do needed[jid] = redis.call("EXISTS", keys[2 * i - 1], keys[2 * i]) > 0 end
  return needed
end

-- The record of such a job goes.
function results.keep(jid)
  for from, to in pairs({ ["result:"] = "keptresult:", ["failure:"] = "keptfailure:" }) do
    if redis.call("EXISTS", P .. from .. jid) == 1 then
      rename(P .. from .. jid, P .. to .. jid)
    end
  end
  place(P .. "kept", jid, now + PAUSE)
end

-- Strike off readers that have completed or gone. Return whether none is left, and none is to be told of the end.
local function strike_readers(jid)
  if redis.call("EXISTS", P .. "dependents:" .. jid) == 1 then return false end
  local key = P .. "readers:" .. jid
  local readers = redis.call("ZRANGE", key, 0, LOOKED_AT_READERS - 1)
  for i, job in ipairs(peek(readers, "klass", "state")) do
    local klass, state = unpack(job)
    if klass and state ~= "complete" then return false end
    place(key, readers[i], false)
  end
  return #readers < LOOKED_AT_READERS
end

-- Delete some of what no job needs any more.
function results.release()
  for _, jid in ipairs(redis.call("ZRANGEBYSCORE", P .. "kept", "-inf", now, "LIMIT", 0, LOOKED_AT)) do
    if strike_readers(jid) then
      drop(P .. "keptresult:" .. jid)
      drop(P .. "keptfailure:" .. jid)
      if redis.call("EXISTS", job_key(jid)) == 0 then drop(P .. "readers:" .. jid) end
      place(P .. "kept", jid, false)
    else
      place(P .. "kept", jid, now + PAUSE)
    end
  end
end
