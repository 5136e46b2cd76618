-- overdue.lua: recurrences whose time passed so long ago that somebody must see why their jobs do not come.
--- @include clock
--- @include keys
local OVERDUE_MS = 60000
local function overdue_recurrences(queue)
  return redis.call("ZCOUNT", queue_key(queue, "recurring"), "-inf", now - OVERDUE_MS)
end
