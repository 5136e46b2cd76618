-- kin.lua: what the end of a job means to those that wait for it. Each has its policy for a parent that fails or goes.
--- @module
--- @include clock
--- @include edges
--- @include moves
-- One parent less; without any the job goes where it would have gone.
function kin.satisfy(child, parent_jid)
  if edges.unbind(child.jid, parent_jid) > 0 then return end
  local due = tonumber(child.due)
  moves.leave(child)
  if due and due > now then moves.to_scheduled(child, due) else moves.to_waiting(child) end
end

function kin.waiting_children(jid)
  local found = {}
  for _, child_jid in ipairs(edges.children_of(jid)) do
    local child = read_job(child_jid)
    if child and child.state == "depends" then
      found[#found + 1] = child
    else
      place(P .. "dependents:" .. jid, child_jid, false)
    end
  end
  return found
end

-- Fails a job that lies nowhere; `what` says how it depends, or depended, and what became of its parent.
function kin.fail_for(child, parent_jid, what)
  local message = "job " .. parent_jid .. ", on which it " .. what
  moves.to_failed(child, "parent-failed", failure_of("parent-failed", message, nil, { parent = parent_jid }))
end

function kin.fail_with_parent(child, parent_jid, what)
  moves.leave(child)
  kin.fail_for(child, parent_jid, "depended, " .. what)
end

-- So many children are told of the ends of their parents by one call, and those of one parent more. The ends of other
-- parents are written down in `untold`, and a sweep goes on with them: "done:", "failed:" or "gone:" and the jid; of
-- what has gone also why, on a second line.
local MOST_TOLD = 1000
local ends, telling, told = {}, false, 0

local function tell_child(child, how, parent_jid, why)
  if child.state ~= "depends" then
    -- it has failed with another of its parents, which failed with this one
  elseif how == "done" or child.policy == "run" then
    kin.satisfy(child, parent_jid)
  elseif how == "gone" then
    kin.fail_with_parent(child, parent_jid, why)
  elseif child.policy == "fail" then
    kin.fail_with_parent(child, parent_jid, "failed")
  end
end

-- A child that fails with its parent has children itself: one after the other, for the stack has an end.
local function tell(how, jid, why)
  ends[#ends + 1] = { how, jid, why }
  if telling then return end
  telling = true
  while #ends > 0 do
    local what, parent_jid, reason = unpack(table.remove(ends))
    if told < MOST_TOLD then
      local children = kin.waiting_children(parent_jid)
      told = told + #children
      for _, child in ipairs(children) do tell_child(child, what, parent_jid, reason) end
    else
      place(P .. "untold", what .. ":" .. parent_jid .. (reason and "\n" .. reason or ""), now)
    end
  end
  telling = false
end

function kin.parent_done(jid) tell("done", jid) end
function kin.parent_failed(rec) tell("failed", rec.jid) end

-- A parent that is deleted: nothing can wait for it any more.
function kin.parent_gone(jid, why) tell("gone", jid, why) end

-- Goes on with the ends that other calls have left. Answers whether more are left.
function kin.go_on()
  for _, member in ipairs(redis.call("ZRANGE", P .. "untold", 0, 99)) do
    place(P .. "untold", member, false)
    local how, jid, why = string.match(member, "^(%l+):([^\n]*)\n?(.*)$")
    if how then tell(how, jid, why) end
  end
  return #first_members(P .. "untold", 1) > 0
end
