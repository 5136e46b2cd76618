#!lua flags=allow-oom
-- convert.lua — take a namespace from layout 1 to layout 2 in one step; begin and end the way back.
--
-- Called by: upgrade.up, upgrade.begin_back, upgrade.end_back (supervisor/engine/commands/upgrade.py)
-- Holds:     INV-2 each record of layout 1 is a full record of layout 2, and lies in the same place
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   "up"; "back": no script of this version writes any more; "end": all records are those of layout 1, so that
--           it gets its names back
-- ARGV[3]   when layouts.lua began to look for jobs apart and for leases that run, unix ms; not used by "end"
--
-- Returns   array of the workers that were seen lately, or since then, as in layouts.lua: with any, nothing has
--           changed.
-- Errors    LAYOUT if the namespace has another layout than the verb begins with. REFUSED if it has ends of parents
--           that are still to be told, or results of deleted jobs that dependents need, which layout 1 does not know (a
--           sweep ends both), or batches that have not ended, or if there is no way back to end.
--           WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include clock
--- @include layout
local verb = ARGV[2]
local was = layout.state
local BEGINS = { up = { ["1"] = true, back = true }, back = { back = true }, ["end"] = { back = true } }
if BEGINS[verb][was] then layout.state = "2" end
--- @include this_layout
--- @include living
--- @include chunks
-- By name in layout 1: name in layout 2 and type.
local MOVED = {
  config = { "options", "hash" }, tracked = { "tracked-jobs", "zset" }, tags = { "tag-counts", "zset" },
  workers = { "workers-seen", "zset" },
}
-- These keys may be missing and are made anew, because layout 1 does not keep them as they must be.
local CACHES = { P .. "idle", P .. "quiet" }
local OF_A_WORKER, MOST_WORKERS = { "worker:", "skills:", "shapes:", "mail:", "asks:" }, 10000

local function is_done() return verb == "up" and was == "2" or was == "new" end

-- Return the keys of the workers that went last: clients of the other layout that are still connected must not write
-- into them. Those of more workers expire.
local function keys_of_workers(index)
  local keys = {}
  for _, worker in ipairs(redis.call("ZREVRANGE", P .. index, 0, MOST_WORKERS - 1)) do
    for _, kind in ipairs(OF_A_WORKER) do keys[#keys + 1] = P .. kind .. worker end
  end
  return keys
end

-- Return those names whose keys are there, with what they become.
local function moves(is_up)
  local found = {}
  for old, new in pairs(MOVED) do
    local from, to = is_up and old or new[1], is_up and new[1] or old
    local kind = redis.call("TYPE", P .. from).ok
    if kind == new[2] then
      found[#found + 1] = { P .. from, P .. to }
    elseif kind ~= "none" then
      error({ err = "WRONGTYPE " .. from .. " is a " .. kind .. ", not a " .. new[2] })
    end
  end
  return found
end

if is_done() then return {} end
if verb == "end" and was == "2" then error({ err = "REFUSED the namespace is not on its way back any more" }) end
local workers = was == "1" and "workers" or "workers-seen"
-- A worker that has leased since the look was seen since.
local living = verb == "end" and {} or workers_since(workers, math.min(now - LIVES, tonumber(ARGV[3]) - 1))
if #living > 0 then return living end
if verb == "back" and redis.call("EXISTS", P .. "untold") == 1 then
  error({ err = "REFUSED namespace " .. string.sub(P, 2, -3) .. " has dependents to be told that a parent has ended,"
    .. " which layout 1 does not know: run it again" })
end
if verb == "back" and redis.call("EXISTS", P .. "kept") == 1 then
  error({ err = "REFUSED namespace " .. string.sub(P, 2, -3) .. " keeps results of deleted jobs for their dependents:"
    .. " let these complete or cancel them, and do this again a minute later" })
end
if verb == "back" and redis.call("EXISTS", P .. "batches") == 1 then
  error({ err = "REFUSED namespace " .. string.sub(P, 2, -3) .. " has batches that have not ended, which layout 1 does"
    .. " not know: let them end, or cancel them (`leasehold batch`), and do this again" })
end
local has_options = redis.call("EXISTS", P .. (was == "1" and "config" or "options")) == 1
local renamed = verb == "up" and was == "1" and moves(true) or verb == "end" and moves(false) or {}
local gone = verb == "end" and {} or keys_of_workers(workers)

-- From here on nothing is read.
in_chunks("UNLINK", gone)
redis.call("UNLINK", unpack(CACHES))
if verb == "end" then redis.call("UNLINK", P .. "config", P .. "tracked", P .. "tags", P .. "workers") end
for _, names in ipairs(renamed) do redis.call("RENAME", unpack(names)) end
if verb == "back" then redis.call("SET", P .. "config", "2>1") end
if verb == "up" then
  redis.call("SET", P .. "config", has_options and "2+" or "2")
  redis.call("MSET", P .. "tracked", "2", P .. "tags", "2", P .. "workers", "2")
end
return {}
