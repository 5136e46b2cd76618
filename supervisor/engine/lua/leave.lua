#!lua flags=allow-oom
-- leave.lua — remove things from the first shard that have arrived in others, unless they have changed meanwhile.
--
-- Called by: resharding.leave (supervisor/engine/commands/resharding.py)
-- Holds:     a thing leaves as it was read, or stays
--
-- KEYS[1]   prefix of the first shard
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   number of the pass
-- ARGV[3..] for each thing: its kind and name, and the seal of what was read
--
-- Returns   array: 1 for each that has left; 0 if it has changed, or cannot move any more.
-- Errors    REFUSED unless the pass is the present one. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include resharding
--- @include clock
--- @include plan
--- @include parcel
local answers, names, sizes = {}, {}, {}

local function take_out(key, index, name, jid)
  sizes[key] = (sizes[key] or redis.call("ZCARD", key)) - 1
  place(key, jid, false)
  if index == "tag-counts" or sizes[key] == 0 then place(P .. index, name, sizes[key] > 0 and sizes[key]) end
end

local function drop_key(name) drop(P .. name) end
local removing = {
  s = drop_key, b = drop_key, h = drop_key, l = drop_key, x = drop_key,
  z = function(name, member) place(P .. name, member[1], false) end,
  t = function(tag, member) take_out(P .. "tag:" .. tag, "tag-counts", tag, member[1]) end,
  g = function(group, member) take_out(P .. "failed:" .. group, "groups", group, member[1]) end,
  f = function(name, field) del_fields({ P .. name, field[1] }) end,
  c = function(name, by) raise(name, -by[1]) end,
}

for i = 3, #ARGV, 2 do names[#names + 1] = ARGV[i] end
parcel.read_ahead(names)
for i, name in ipairs(names) do
  local it = parcel.of(name)
  answers[i] = it.why == "" and it.seal == ARGV[2 * i + 2] and 1 or 0
  if answers[i] == 1 then parcel.each(it.parts, 1, removing) end
end
commit()
return answers
