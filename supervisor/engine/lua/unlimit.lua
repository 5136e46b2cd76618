#!lua flags=allow-oom
-- unlimit.lua — lift a limit. What runs keeps its slot until it ends, and counts if the limit is set again.
--
-- Called by: limits.unlimit (supervisor/engine/limits.py)
-- Holds:     what was parked under it comes back
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   key of the limit
--
-- Returns   1, or 0 if it was not set.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include clock
--- @include events
--- @include limits
local key = ARGV[2]
if redis.call("EXISTS", P .. "limit:" .. key) == 0 then return 0 end
drop(P .. "limit:" .. key)
drop(P .. "starts:" .. key)
place(P .. "limits", key, false)
limits.set(key)
announce("limit.changed", { limit = key })
commit()
return 1
