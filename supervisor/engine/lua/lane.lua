#!lua flags=allow-oom
-- lane.lua — set the weight of a lane, or pause it, or end its pause.
--
-- Called by: lanes.weigh, lanes.pause, lanes.unpause (supervisor/engine/commands/lanes.py)
-- Holds:     a worker that waits for a freed lane is woken
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
-- ARGV[3]   lane
-- ARGV[4]   verb: weight, pause or unpause
-- ARGV[5]   weight, 1 to 1000; else ""
-- ARGV[6]   name of the actor; "" = unknown
--
-- Returns   1, or 0 if nothing changed.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include events
--- @include lanes
--- @include limits
--- @include acts
local queue, lane, verb = ARGV[2], ARGV[3], ARGV[4]
local settings, index = P .. "lanes:" .. queue, lanes.index(queue)
local stored = redis.call("HMGET", settings, "weight:" .. lane, "paused:" .. lane)

-- Defaults are not stored.
local function set(field, value)
  if value then set_fields({ settings, field, value }) else del_fields({ settings, field }) end
end

if verb == "weight" then
  if (stored[1] or "1") == ARGV[5] then return 0 end
  set("weight:" .. lane, ARGV[5] ~= "1" and ARGV[5])
else
  if (stored[2] ~= false) == (verb == "pause") then return 0 end
  set("paused:" .. lane, verb == "pause" and digits(now) .. ":" .. ARGV[6])
  limits.mark_all_for_check(queue) -- jobs that came back into this lane blocked slots, or were passed over
  if verb == "pause" then
    place(index, lane, false)
  elseif redis.call("ZCARD", lanes.line(queue, lane)) > 0 then
    fair.join(index, lane)
  end
  wake(queue)
  publish_event("lane." .. verb .. "d", { queue = queue, lane = lane, by = ARGV[6] ~= "" and ARGV[6] or nil })
end
acts.note(ARGV[6], verb, "lane", { lane }, queue, ARGV[5])
commit()
return 1
