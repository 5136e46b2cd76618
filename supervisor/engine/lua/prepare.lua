#!lua
-- prepare.lua — make a shard ready for the jobs of the first one, and copy settings to it.
--
-- Called by: resharding.prepare (supervisor/engine/commands/resharding.py)
-- Holds:     what the first shard has numbered comes before what this one numbers
--
-- KEYS[1]   prefix of the shard
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   number of the pass
-- ARGV[3]   number of shards
-- ARGV[4]   last sequence of the first shard
-- ARGV[5]   name of a hash, or of the sorted set "queues", whose fields or members follow with their values; "" = none
-- ARGV[6..] these
--
-- Returns   1.
-- Errors    REFUSED if there are keys of another namespace, or a later pass has begun. LAYOUT in a namespace of another
--           layout. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include clock
--- @include layout
local shards = layout.state ~= "new" and (layout.shards or "1") or ARGV[3]
if layout.state == "moving" or layout.state == "sharded" then layout.state = "2" end
--- @include this_layout
--- @include plan
local name, given = ARGV[5], { unpack(ARGV, 6) }
if not string.find(shards, "^" .. ARGV[3] .. "<?$") then
  refuse("REFUSED", "there is a namespace " .. string.sub(P, 2, -3) .. " already")
elseif (tonumber(redis.call("GET", P .. "resharding") or nil) or 0) > tonumber(ARGV[2]) then
  refuse("REFUSED", "another pass has begun")
end
for i = 1, #given, 2 do
  if name ~= "queues" then
    set_fields({ P .. name, given[i], given[i + 1] })
  elseif not score_of(P .. name, given[i]) then
    place(P .. name, given[i], given[i + 1])
  end
end
if name ~= "" and name ~= "queues" then redis.call("HLEN", P .. name) end -- a foreign type raises here
if name == "options" then layout.has_options = true end
layout.shards = ARGV[3] .. "<"
for _, mark in ipairs({ "tracked", "tags", "workers" }) do store(P .. mark, "2") end
store(P .. "config", layout.mark())
store(P .. "resharding", ARGV[2])
if not layout.token then store(P .. "token", digits(layout.first_token or 0)) end
if tonumber(layout.seq or 0) < tonumber(ARGV[4]) then store(P .. "seq", ARGV[4]) end
commit()
return 1
