-- kin.lua: what the end of a job means to those that wait for it. Each has its policy for a parent that fails or goes.
--- @module
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

function kin.parent_done(jid)
  for _, child in ipairs(kin.waiting_children(jid)) do kin.satisfy(child, jid) end
end

local function tell_children(parent)
  for _, child in ipairs(kin.waiting_children(parent.jid)) do
    if child.state ~= "depends" then
      -- it has failed with another of its parents, which failed with this one
    elseif child.policy == "run" then
      kin.satisfy(child, parent.jid)
    elseif child.policy == "fail" then
      kin.fail_with_parent(child, parent.jid, "failed")
    end
  end
end

local to_tell, telling = {}, false

-- A child that fails with its parent has children itself: one after the other, for the stack has an end.
function kin.parent_failed(rec)
  to_tell[#to_tell + 1] = rec
  if telling then return end
  telling = true
  while #to_tell > 0 do tell_children(table.remove(to_tell)) end
  telling = false
end

-- A parent that is deleted: nothing can wait for it any more.
function kin.parent_gone(jid, why)
  for _, child in ipairs(kin.waiting_children(jid)) do
    if child.state ~= "depends" then
      -- as above
    elseif child.policy == "run" then
      kin.satisfy(child, jid)
    else
      kin.fail_with_parent(child, jid, why)
    end
  end
end
