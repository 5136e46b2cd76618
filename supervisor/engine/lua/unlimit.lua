#!lua flags=allow-oom
-- unlimit.lua — remove a limit, or one half of it. Running jobs keep their slots, which count if it is set again.
--
-- Called by: limits.unlimit (supervisor/engine/commands/limits.py)
-- Holds:     jobs parked under it come back
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   key of the limit
-- ARGV[3]   "running" or "rate": only that; "" = both
-- ARGV[4]   name of the actor; "" = unknown
--
-- Returns   1, or 0 if it was not set.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include events
--- @include limits
--- @include acts
local key, half = ARGV[2], ARGV[3]
local set = redis.call("HMGET", P .. "limit:" .. key, "running", "starts", "per")
local running, starts, per = tonumber(set[1] or nil), tonumber(set[2] or nil), tonumber(set[3] or nil)
if not (half ~= "rate" and running or half ~= "running" and starts) then return 0 end
if half ~= "rate" then running = nil end
if half ~= "running" then starts, per = nil, nil end
if running then
  del_fields({ P .. "limit:" .. key, "starts", "per" })
elseif starts then
  del_fields({ P .. "limit:" .. key, "running" })
else
  drop(P .. "limit:" .. key)
  place(P .. "limits", key, false)
end
if running or starts then set_fields({ P .. "limit:" .. key, "by", digits(now) .. ":" .. ARGV[4] }) end
if not starts then drop(P .. "starts:" .. key) end
limits.set(key, running, starts, per)
acts.note(ARGV[4], "unlimit", "limit", { key }, "", half)
publish_event("limit.changed", { limit = key, by = ARGV[4] ~= "" and ARGV[4] or nil })
commit()
return 1
