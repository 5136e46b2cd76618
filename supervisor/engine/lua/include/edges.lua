-- edges.lua: which job waits for which: dependencies:<child> has the parents that must still end, dependents:<parent>
-- its children.
--- @module
--- @include clock
--- @include record
--- @include results
-- The end of a job frees all its dependents in one step, while Redis does nothing else.
local MOST_CHILDREN = 1000
-- A call adds and follows no more edges than it can in 50 ms, and it must be able to remove all edges of one job.
edges.MOST_MADE = 5000
local MOST_STEPS = 20000
edges.MOST_UNDONE = 5000 -- of several jobs; one job may have any number
local unmet_counts, child_counts = {}, {}
local made, undone, steps = 0, 0, 0
local visited = {} -- jobs above which `why_circular` has searched everything, with the plan's changes there

-- The ends of parents that children have not been told of. Their scores, and those of `dependents:`, tell which child
-- was bound before which end: times in ms, raised where needed to tell them apart, whatever the clock does.
edges.UNTOLD = P .. "untold"
local last_end

-- Return the score of the last end in `untold`; 0 if there is none.
function edges.last_end()
  last_end = last_end or tonumber(redis.call("ZRANGE", edges.UNTOLD, -1, -1, "WITHSCORES")[2]) or 0
  return last_end
end

-- Return the score of a new end: after all others, and not before that of any child of the parent.
function edges.score_of_end(parent_jid)
  local newest = redis.call("ZRANGE", P .. "dependents:" .. parent_jid, -1, -1, "WITHSCORES")[2]
  last_end = math.max(now, edges.last_end() + 1, tonumber(newest) or 0)
  return last_end
end

-- Return the members of a sorted set as the plan leaves it; with a score `upto` those up to that.
function edges.members_of(key, upto)
  local stored, planned, members, seen = redis.call("ZRANGEBYSCORE", key, "-inf", upto or "+inf"), zsets[key], {}, {}
  if not planned then return stored end
  for _, member in ipairs(stored) do
    if planned[member] == nil then members[#members + 1] = member end
    seen[member] = planned[member] == nil
  end
  for member, score in pairs(planned) do
    if score and score <= (upto or score) and not seen[member] then members[#members + 1] = member end
  end
  return members
end

function edges.parents_of(jid) return edges.members_of(P .. "dependencies:" .. jid) end
function edges.children_of(jid, bound_until) return edges.members_of(P .. "dependents:" .. jid, bound_until) end

local function unmet_count(jid)
  local key = P .. "dependencies:" .. jid
  unmet_counts[jid] = unmet_counts[jid] or zsets[key] and #edges.members_of(key) or redis.call("ZCARD", key)
  return unmet_counts[jid]
end

function edges.child_count(parent_jid)
  child_counts[parent_jid] = child_counts[parent_jid] or redis.call("ZCARD", P .. "dependents:" .. parent_jid)
  return child_counts[parent_jid]
end

local child_count = edges.child_count

local function is_child(jid, parent_jid)
  local key = P .. "dependents:" .. parent_jid
  local planned = zsets[key] and zsets[key][jid]
  if planned ~= nil then return planned end
  return child_count(parent_jid) > 0 and redis.call("ZSCORE", key, jid)
end

-- Return whether one more job may wait for this one.
function edges.has_room(jid, parent_jid)
  return child_count(parent_jid) < MOST_CHILDREN or is_child(jid, parent_jid)
end

function edges.bind(child, parent)
  local key, count = P .. "dependents:" .. parent.jid, child_count(parent.jid)
  if not is_child(child.jid, parent.jid) then child_counts[parent.jid] = count + 1 end
  unmet_counts[child.jid], made = nil, made + 1
  edges.changes(child.jid)
  place(P .. "dependencies:" .. child.jid, parent.jid, now)
  place(key, child.jid, math.max(now, edges.last_end() + 1))
  results.expect_from(parent)
  parent.kin = 1
end

-- Return how many edges this call has made and removed, and whether those removed are as many as it should.
function edges.made() return made end
function edges.undone() return undone end
function edges.is_spent() return undone >= edges.MOST_UNDONE end

-- Return how many parents the child still waits for.
function edges.unbind(child_jid, parent_jid)
  undone = undone + 1
  unmet_counts[child_jid] = unmet_count(child_jid) - 1
  child_counts[parent_jid] = child_count(parent_jid) - 1
  place(P .. "dependencies:" .. child_jid, parent_jid, false)
  place(P .. "dependents:" .. parent_jid, child_jid, false)
  return unmet_counts[child_jid]
end

function edges.unbind_all(child_jid)
  for _, parent in ipairs(edges.parents_of(child_jid)) do edges.unbind(child_jid, parent) end
end

-- A job is about to wait for more jobs, so the results of searches above it no longer hold.
function edges.changes(jid)
  if visited[jid] then visited = {} end
end

-- Return why no job can wait for so many more, of which it has so many already.
function edges.why_too_many(jid, n, has)
  if made + n > edges.MOST_MADE then
    return "job " .. jid .. " is one of those that get more than " .. edges.MOST_MADE
      .. " dependencies by one call: put fewer of them at a time"
  end
  if has + n > edges.MOST_MADE then
    return "job " .. jid .. " cannot depend on more than " .. edges.MOST_MADE
      .. " jobs: let others wait for some of them"
  end
end

-- Search above a job for another: "met", "deep" if the steps of this call are used up, nil if it is not there.
local function search_above(first, other, instead)
  local line = { first }
  while #line > 0 do
    local one = table.remove(line)
    if one == other then return "met" end
    if not visited[one] then
      visited[one], steps = true, steps + 1
      for _, parent in ipairs(instead and instead[one] or edges.parents_of(one)) do
        line[#line + 1], steps = parent, steps + 1
      end
      if steps > MOST_STEPS then return "deep" end
    end
  end
end

-- Return why a job cannot wait for these parents: one of them waits for it, directly or not, or that takes more than a
-- bounded number of steps to tell; nil if it can. `instead` has the parents that some jobs will have. A call searches
-- each job once: jobs above a searched one were not met there.
function edges.why_circular(jid, parents, instead)
  edges.changes(jid)
  for _, parent in ipairs(parents) do
    if not score_of(P .. "dependencies:" .. jid, parent) then
      local found = search_above(parent, jid, instead)
      if found then visited = {} end
      if found == "met" then return "job " .. jid .. " cannot depend on " .. parent .. ", which waits for it" end
      if found == "deep" then
        return "job " .. jid .. " cannot depend on " .. parent .. ": what that waits for is too deep to look through, "
          .. MOST_STEPS / 2 .. " jobs and more; put it as a new job, or before the jobs that wait for it"
      end
    end
  end
end

-- Results found with `instead` may never come true.
function edges.forget_visited() visited = {} end

-- Return whether a job can wait for these parents after others of the same outcome, which have the parents of
-- `instead`; `children` counts those that all of them add to a parent.
function edges.fits(jid, parents, instead, children)
  local rec, awaited = read_job(jid), children[jid]
  for _, parent in ipairs(parents) do
    children[parent] = (children[parent] or 0) + 1
    if parent == jid or child_count(parent) + children[parent] > MOST_CHILDREN then return false end
  end
  edges.changes(jid)
  return not ((awaited or rec and rec.kin) and edges.why_circular(jid, parents, instead))
end
