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

local function child_count(parent_jid)
  child_counts[parent_jid] = child_counts[parent_jid] or redis.call("ZCARD", P .. "dependents:" .. parent_jid)
  return child_counts[parent_jid]
end

local function is_child(jid, parent_jid)
  local key = P .. "dependents:" .. parent_jid
  local planned = (zsets[key] or {})[jid]
  if planned ~= nil then return planned end
  return redis.call("ZSCORE", key, jid)
end

-- Whether one more job may wait for this one.
function edges.has_room(jid, parent_jid)
  return child_count(parent_jid) < MOST_CHILDREN or is_child(jid, parent_jid)
end

function edges.bind(child, parent)
  local key, count = P .. "dependents:" .. parent.jid, child_count(parent.jid)
  if not is_child(child.jid, parent.jid) then child_counts[parent.jid] = count + 1 end
  unmet_counts[child.jid] = nil
  place(P .. "dependencies:" .. child.jid, parent.jid, now)
  place(key, child.jid, now)
  parent.kin = 1
end

-- Answers how many parents the child still waits for.
function edges.unbind(child_jid, parent_jid)
  unmet_counts[child_jid] = unmet_count(child_jid) - 1
  child_counts[parent_jid] = child_count(parent_jid) - 1
  place(P .. "dependencies:" .. child_jid, parent_jid, false)
  place(P .. "dependents:" .. parent_jid, child_jid, false)
  return unmet_counts[child_jid]
end

function edges.unbind_all(child_jid)
  for _, parent in ipairs(edges.parents_of(child_jid)) do edges.unbind(child_jid, parent) end
end

-- Whether a job waits for another, over whatever others; `instead` has the parents that some jobs will have.
function edges.waits_for(jid, other, instead)
  local line, seen = { jid }, { [jid] = true }
  while #line > 0 do
    local one = table.remove(line)
    if one == other then return true end
    for _, parent in ipairs(instead and instead[one] or edges.parents_of(one)) do
      if not seen[parent] then
        line[#line + 1], seen[parent] = parent, true
      end
    end
  end
  return false
end

-- Whether a job can be put to wait for these parents after others of the same outcome, which have the parents of
-- `instead`; `children` counts those that all of them add to a parent.
function edges.fits(jid, parents, instead, children)
  for _, parent in ipairs(parents) do
    children[parent] = (children[parent] or 0) + 1
    if child_count(parent) + children[parent] > MOST_CHILDREN then return false end
    if edges.waits_for(parent, jid, instead) then return false end
  end
  return true
end
