-- edges.lua: who waits for whom: dependencies:<child> has the parents that must still end, dependents:<parent> its
-- children.
--- @module
--- @include clock
--- @include record
-- The end of a job frees all that wait for it in one step, in which Redis does nothing else.
local MOST_CHILDREN = 1000
local unmet_counts, child_counts = {}, {}

-- The members of a sorted set as this script leaves it.
function edges.members_of(key)
  local stored, planned, members, seen = redis.call("ZRANGE", key, 0, -1), zsets[key], {}, {}
  if not planned then return stored end
  for _, member in ipairs(stored) do
    seen[member] = true
    if planned[member] ~= false then members[#members + 1] = member end
  end
  for member, score in pairs(planned) do
    if score and not seen[member] then members[#members + 1] = member end
  end
  return members
end

function edges.parents_of(jid) return edges.members_of(P .. "dependencies:" .. jid) end
function edges.children_of(jid) return edges.members_of(P .. "dependents:" .. jid) end

local function unmet_count(jid)
  local key = P .. "dependencies:" .. jid
  unmet_counts[jid] = unmet_counts[jid] or zsets[key] and #edges.members_of(key) or redis.call("ZCARD", key)
  return unmet_counts[jid]
end

function edges.bind(child, parent)
  local key = P .. "dependents:" .. parent.jid
  child_counts[parent.jid] = (child_counts[parent.jid] or redis.call("ZCARD", key)) + 1
  if child_counts[parent.jid] > MOST_CHILDREN then
    local why = "job " .. child.jid .. " cannot wait for job " .. parent.jid .. ": " .. MOST_CHILDREN .. " jobs do; "
    refuse("DEPENDENCY", why .. "have it wait for one of them, or for a job that waits for all")
  end
  unmet_counts[child.jid] = nil
  place(P .. "dependencies:" .. child.jid, parent.jid, now)
  place(key, child.jid, now)
  parent.kin = 1
end

-- Answers how many parents the child still waits for.
function edges.unbind(child_jid, parent_jid)
  unmet_counts[child_jid] = unmet_count(child_jid) - 1
  place(P .. "dependencies:" .. child_jid, parent_jid, false)
  place(P .. "dependents:" .. parent_jid, child_jid, false)
  return unmet_counts[child_jid]
end

function edges.unbind_all(child_jid)
  for _, parent in ipairs(edges.parents_of(child_jid)) do edges.unbind(child_jid, parent) end
end

-- Whether a job waits for another, over whatever others.
function edges.waits_for(jid, other)
  local line, seen = { jid }, { [jid] = true }
  while #line > 0 do
    local one = table.remove(line)
    if one == other then return true end
    for _, parent in ipairs(edges.parents_of(one)) do
      if not seen[parent] then
        line[#line + 1], seen[parent] = parent, true
      end
    end
  end
  return false
end
