-- kin.lua: what the end of a job means to its dependents. Each has its policy for a parent that fails or goes.
--- @module
--- @include clock
--- @include edges
--- @include moves
--- @include results
-- Remove one parent. A job without any left goes where its put would have placed it.
function kin.satisfy(child, parent_jid)
  if edges.unbind(child.jid, parent_jid) > 0 then return end
  local due = tonumber(child.due)
  moves.leave(child)
  if due and due > now then moves.to_scheduled(child, due) else moves.to_waiting(child) end
end

-- Return the dependents of a job; with a score only those bound until then.
function kin.waiting_children(jid, bound_until)
  local found = {}
  for _, child_jid in ipairs(edges.children_of(jid, bound_until)) do
    local child = read_job(child_jid)
    if child and child.state == "depends" then
      found[#found + 1] = child
    else
      place(P .. "dependents:" .. jid, child_jid, false)
    end
  end
  return found
end

-- Return the dependents of a job that must not go on without it. Only their policy is read.
function kin.needing(jid)
  local found, unread = {}, {}
  local function add(child_jid, state, policy)
    if state == "depends" and not policy then found[#found + 1] = child_jid end
  end
  for _, child_jid in ipairs(edges.children_of(jid)) do
    local rec = records[child_jid]
    if rec then add(child_jid, rec.state, rec.policy) elseif rec == nil then unread[#unread + 1] = child_jid end
  end
  for i, job in ipairs(peek(unread, "state", "policy")) do add(unread[i], unpack(job)) end
  return found
end

-- Fail a job that lies in no place; `what` says how it depends, or depended, and what became of its parent.
function kin.fail_for(child, parent_jid, what)
  local message = "job " .. parent_jid .. ", on which it " .. what
  moves.to_failed(child, "parent-failed", failure_of("parent-failed", message, nil, { parent = parent_jid }))
end

function kin.fail_with_parent(child, parent_jid, what)
  moves.leave(child)
  kin.fail_for(child, parent_jid, "depended, " .. what)
end

-- The ends of parents reach so many children in one call, or fewer if these have many other parents. Further ends, and
-- one that has not reached all children, are stored in `untold`. The next call with an end, or a sweep, goes on with
-- them in their order. A member is "done:", "failed:" or "gone:" and the jid; on a second line the score, so that each
-- end has its own member; for "gone:" the reason on a third one. A later stage of the parent may have children by then:
-- an end is for those bound at or before its score.
local MOST_REACHED = 1000
local EDGES_A_CHILD = 4 -- removing so many takes as long as reaching a child
local UNTOLD_READ = 100 -- at once
local ends, is_propagating, reached = {}, false, 0

local function propagate_to_child(child, how, parent_jid, why)
  if child.state ~= "depends" then
    -- it has failed with another of its parents, which failed with this one
  elseif how == "gone" and child.policy == "run" then
    results.leave_failure_to(child.jid, parent_jid, failure_of("gone", "the job " .. why))
    kin.satisfy(child, parent_jid)
  elseif how == "done" or child.policy == "run" then
    results.leave_to(child.jid, parent_jid)
    kin.satisfy(child, parent_jid)
  elseif how == "gone" then
    kin.fail_with_parent(child, parent_jid, why)
  elseif child.policy == "fail" then
    kin.fail_with_parent(child, parent_jid, "failed")
  end
end

-- Apply the end of a parent to its children. Return whether all were reached. If not, those reached do not wait for
-- this parent any more.
local function propagate_to_children(how, jid, why, bound_until)
  if reached > 0 and reached + edges.child_count(jid) > MOST_REACHED then
    reached = MOST_REACHED
    return false
  end
  local children = kin.waiting_children(jid, bound_until)
  if #children == 0 then reached = reached + 1 end
  for _, child in ipairs(children) do
    if reached >= MOST_REACHED then return false end
    local undone = edges.undone()
    propagate_to_child(child, how, jid, why)
    reached = reached + 1 + math.floor((edges.undone() - undone) / EDGES_A_CHILD)
  end
  return true
end

local function store_end(how, jid, why)
  local score = edges.score_of_end(jid)
  place(edges.UNTOLD, how .. ":" .. jid .. "\n" .. digits(score) .. (why and "\n" .. why or ""), score)
end

-- Apply the ends that other calls have left.
local function propagate_stored()
  while reached < MOST_REACHED do
    local left = head_of(edges.UNTOLD, UNTOLD_READ)
    if #left == 0 then return end
    for i = 1, #left, 2 do
      if reached >= MOST_REACHED then return end
      local how, jid, _, why = string.match(left[i], "^(%l+):([^\n]*)\n?(%d*)\n?(.*)$")
      if how and not propagate_to_children(how, jid, why, tonumber(left[i + 1])) then return end
      place(edges.UNTOLD, left[i], false)
    end
  end
end

-- A child that fails with its parent has children itself. They follow one after the other, because the stack is
-- limited.
local function propagate_all()
  is_propagating = true
  if edges.last_end() > 0 then propagate_stored() end
  while #ends > 0 do
    local how, jid, why = unpack(table.remove(ends))
    if reached >= MOST_REACHED or not propagate_to_children(how, jid, why) then store_end(how, jid, why) end
  end
  is_propagating = false
end

local function propagate(how, jid, why)
  ends[#ends + 1] = { how, jid, why }
  if not is_propagating then propagate_all() end
end

function kin.parent_done(jid) propagate("done", jid) end
function kin.parent_failed(rec) propagate("failed", rec.jid) end

-- A parent that is deleted: no job can wait for it any more.
function kin.parent_gone(jid, why) propagate("gone", jid, why) end

-- Go on with the ends that other calls have left. Return whether more are left.
function kin.propagate_ends()
  propagate_all()
  return #first_members(edges.UNTOLD, 1) > 0
end
