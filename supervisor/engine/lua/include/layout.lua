-- layout.lua: the layout of the namespace, read in one call with the counters. `config` is its mark: "2", or "2+" if
-- the hash `options` is there; "3/16" or "3+/16" in each of 16 shards, with "<" behind while shard 0 has jobs whose
-- jids belong to others. While jobs move from 1 shard to 16 the first one has "3/1>16", and "3/16>16" while it gives
-- away what was left in it. lua/README.md has the layouts.
--- @include prefix
-- One table, because a script may have only 200 local variables.
local layout = redis.call("MGET", P .. "config", P .. "seq", P .. "token")
layout.seq, layout.token = layout[2], layout[3] -- false: missing, or of a foreign type
layout.has_options = layout[1] == "2+"
-- KEYS[2] says how many shards the caller knows, behind the prefix. Without it, the caller knows one.
layout.state = (layout.has_options or layout[1] == "2") and not KEYS[2] and "2"
if not layout.state then
  local mark = layout[1] or ""
  local number, known = tonumber(string.match(mark, "^%d+")), KEYS[2] and string.sub(KEYS[2], #P + 1)
  local options, shards = string.match(mark, "^3(%+?)/(.+)$")
  local function has_any(...)
    local keys = { ... }
    for i, name in ipairs(keys) do keys[i] = P .. name end
    return redis.call("EXISTS", unpack(keys)) > 0
  end
  local function is_marked_beside()
    local beside = redis.call("MGET", P .. "tracked", P .. "tags", P .. "workers")
    return beside[1] == "2" or beside[2] == "2" or beside[3] == "2" -- of 0.1 a foreign string may lie there
  end
  if shards then
    local is_known = known and known == string.match(shards, "^(%d+)<?$")
    layout.state = is_known and "2" or string.find(shards, ">") and "moving" or "sharded"
    layout.shards, layout.has_options = shards, options == "+"
  elseif known and (mark == "2" or mark == "2+") then
    layout.state = "sharded"
  elseif mark == "2>1" then
    layout.state = "back"
  elseif number and number > 2 then
    layout.state = "newer"
  elseif layout[1] or is_marked_beside() or has_any("options", "tracked-jobs", "tag-counts", "workers-seen") then
    layout.state, layout.shards = "lost", known
  elseif has_any("config", "tracked", "tags", "workers", "queues", "limits", "seq", "token") then
    layout.state = "1"
  else
    layout.state, layout.shards = "new", known -- also if other programs have pushed entries
  end
end
-- The tokens of all shards differ: those of shard N begin at N * 2^45.
if layout.shards then
  local first = (tonumber(string.match(P, "#(%d+)}:$")) or 0) * 2 ^ 45
  layout.last_token = first + 2 ^ 45 - 1
  --   A counter below the range was set by hand, or comes from another namespace.
  local token = not layout.token and -1 or tonumber(string.match(layout.token, "^%-?%d+$"))
  if token and token < first then layout.first_token = first end
end

-- Return the mark of this namespace, as it is to be.
function layout.mark()
  local options = layout.has_options and "+" or ""
  return layout.shards and "3" .. options .. "/" .. layout.shards or "2" .. options
end
