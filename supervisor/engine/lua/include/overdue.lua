-- overdue.lua: recurrences whose time passed a minute ago, so that somebody must see why their jobs do not come.
--- @include clock
--- @include keys
local function overdue_recurrences(queue)
  return redis.call("ZCOUNT", queue_key(queue, "recurring"), "-inf", now - 60000)
end
