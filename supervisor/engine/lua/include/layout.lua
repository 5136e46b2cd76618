-- layout.lua: the layout of the namespace, read in one call with the counters. `config` is its mark: "2", or "2+" if
-- the hash `options` is there. lua/README.md has the layouts.
--- @include prefix
-- One table, because a script may have only 200 local variables.
local layout = redis.call("MGET", P .. "config", P .. "seq", P .. "token")
layout.seq, layout.token = layout[2], layout[3] -- false: missing, or of a foreign type
layout.has_options = layout[1] == "2+"
layout.state = (layout.has_options or layout[1] == "2") and "2"
if not layout.state then
  local mark = layout[1]
  local number = tonumber(string.match(mark or "", "^%d+"))
  local function has_any(...)
    local keys = { ... }
    for i, name in ipairs(keys) do keys[i] = P .. name end
    return redis.call("EXISTS", unpack(keys)) > 0
  end
  local function is_marked_beside()
    local beside = redis.call("MGET", P .. "tracked", P .. "tags", P .. "workers")
    return beside[1] == "2" or beside[2] == "2" or beside[3] == "2" -- of 0.1 a foreign string may lie there
  end
  if mark == "2>1" then
    layout.state = "back"
  elseif number and number > 2 then
    layout.state = "newer"
  elseif mark or is_marked_beside() or has_any("options", "tracked-jobs", "tag-counts", "workers-seen") then
    layout.state = "lost"
  elseif has_any("config", "tracked", "tags", "workers", "queues", "limits", "seq", "token") then
    layout.state = "1"
  else
    layout.state = "new" -- also if other programs have pushed entries
  end
end
