#!lua flags=no-writes
-- settings.lua — what is set in the configuration.
--
-- Called by: looks.settings (supervisor/engine/commands/queries.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
--
-- Returns   array of `<option>` or `<option>-<queue>`, its value, and so on.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include keys
return redis.call("HGETALL", P .. "config")
