#!lua flags=no-writes
-- settings.lua — all settings of the configuration.
--
-- Called by: settings.read, settings.setter (supervisor/engine/commands/settings.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
--
-- Returns   array of `<option>` or `<option>-<queue>`, its value, and so on.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
return redis.call("HGETALL", P .. "options")
