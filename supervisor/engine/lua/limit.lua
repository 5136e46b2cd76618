#!lua flags=allow-oom
-- limit.lua — set how many jobs of a limit may run at once, and how many may start in a time.
--
-- Called by: limits.limit (supervisor/engine/commands/limits.py)
-- Holds:     jobs that have room now are unparked at once
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   key of the limit
-- ARGV[3]   the most jobs that run at once; "" = unchanged
-- ARGV[4]   the most starts in a time; "" = unchanged, with ARGV[5]
-- ARGV[5]   that time in ms
-- ARGV[6]   name of the actor; "" = unknown
--
-- Returns   1.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include events
--- @include limits
--- @include acts
local key, settings, by = ARGV[2], P .. "limit:" .. ARGV[2], ARGV[6]
local set, given = redis.call("HMGET", settings, "running", "starts", "per"), { ARGV[3], ARGV[4], ARGV[5] }
for i, field in ipairs({ "running", "starts", "per" }) do
  if given[i] ~= "" then
    set_fields({ settings, field, given[i] })
    set[i] = given[i]
  end
end
set_fields({ settings, "by", digits(now) .. ":" .. by })
place(P .. "limits", key, redis.call("ZSCORE", P .. "limits", key) or now)
limits.set(key, tonumber(set[1] or nil), tonumber(set[2] or nil), tonumber(set[3] or nil))
local rate = ARGV[4] ~= "" and ARGV[4] .. " in " .. ARGV[5] .. " ms" or ""
acts.note(by, "limit", "limit", { key }, "", ARGV[3] ~= "" and ARGV[3] .. " at once " .. rate or rate)
publish_event("limit.changed", { limit = key, by = by ~= "" and by or nil })
commit()
return 1
