-- lanes.lua: the lines of a queue, one per lane. Jobs without a lane wait in queue:<q>:waiting, which is the lane "".
--- @module
--- @include clock
--- @include fair
lanes.AHEAD = -2 ^ 53 -- of a job that had its turn already: before all priorities
local settings = {}

function lanes.line(queue, lane)
  return lane == "" and queue_key(queue, "waiting") or P .. "lane:" .. queue .. "\n" .. lane
end

function lanes.index(queue) return queue_key(queue, "lanes") end

local function setting_of(queue, kind, lane)
  local known = settings[queue]
  if not known then
    known = { none = redis.call("EXISTS", P .. "lanes:" .. queue) == 0 }
    settings[queue] = known
  end
  if known.none then return nil end
  local field = kind .. ":" .. lane
  if known[field] == nil then known[field] = redis.call("HGET", P .. "lanes:" .. queue, field) end
  return known[field] or nil
end

function lanes.weight(queue, lane)
  local weight = tonumber(setting_of(queue, "weight", lane) or nil)
  return weight and weight >= 1 and weight or 1
end

-- Return since when a lane is paused in ms, ":" and who paused it; or only that it is.
function lanes.pause_of(queue, lane) return setting_of(queue, "paused", lane) end

function lanes.is_paused(queue, lane) return lanes.pause_of(queue, lane) ~= nil end

-- Add to the number of jobs in the named lanes.
local function count(queue, by) return raise("laned:" .. queue, by) end

function lanes.join(queue, lane)
  if not lanes.is_paused(queue, lane) then fair.join(lanes.index(queue), lane) end
end

-- A job in front of a paused lane has its place by its turn.
local function member(rec) return member_of(rec.jid, rec.aside and rec.turn or rec.seq) end

-- A job of a lane joins its line.
function lanes.add(rec)
  place(lanes.line(rec.queue, rec.lane), member(rec), rec.aside and lanes.AHEAD or rec.priority or 0)
  count(rec.queue, 1)
  lanes.join(rec.queue, rec.lane)
end

-- A job of a lane leaves its line.
function lanes.remove(rec) lanes.strike(rec.queue, rec.lane, member(rec)) end

function lanes.strike(queue, lane, member_of_it)
  place(lanes.line(queue, lane), member_of_it, false)
  if lane ~= "" then count(queue, -1) end
end

-- Return the number of jobs in the named lanes, also in paused ones.
function lanes.size(queue) return count(queue, 0) end

-- Return whether a job could be leased from some lanes, as far as 16 of them tell.
function lanes.have_work(queue, some)
  for i = 1, math.min(#some, 16) do
    if #first_members(lanes.line(queue, some[i].line), 1) > 0 then return true end
  end
  return #some > 16
end

-- As soon as there are lanes, the jobs without one take turns, too. Return whether there are lanes.
function lanes.in_use(queue)
  local index = lanes.index(queue)
  local found = first_members(index, 2)
  if #found == 0 then return false end
  if #found == 1 and found[1] == "" then
    place(index, "", false)
    return false
  end
  if #first_members(lanes.line(queue, ""), 1) > 0 then lanes.join(queue, "") end
  return true
end
