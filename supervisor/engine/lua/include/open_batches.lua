-- open_batches.lua: batches whose block was not left for so long that nobody will leave it.
--- @include clock
local OPEN_FOR_LONG = 3600000 -- ms
local function open_for_long() return redis.call("ZCOUNT", P .. "batches-open", "-inf", now - OPEN_FOR_LONG) end
