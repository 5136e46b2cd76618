#!lua flags=no-writes
-- guests.lua — tell which things the first shard still has that belong to others, since the namespace was divided.
--
-- Called by: dividing.guests (supervisor/engine/commands/dividing.py)
-- Holds:     what is tied to a guest goes where that is
--
-- KEYS[1]    prefix of the namespace's first shard
-- ARGV[1..]  kind, name of each thing. Kinds: job, batch, recurrence, limit, and unique with queue, newline, key
--
-- Returns    array, one per thing: 1 or 0.
-- Errors     WRONGTYPE for a foreign key of ours.

--- @include this_layout
local found = {}
local function has(kind, name)
  if kind == "unique" then
    local queue, key = string.match(name, "^([^\n]*)\n(.*)$")
    return redis.call("HEXISTS", P .. "unique:" .. queue, key) == 1
  end
  if kind == "limit" then
    return redis.call("EXISTS", P .. "limit:" .. name, P .. "holders:" .. name, P .. "limited:" .. name) > 0
  end
  return redis.call("EXISTS", P .. ({ job = "job:", batch = "batch:", recurrence = "recur:" })[kind] .. name) > 0
end
for i = 1, #ARGV, 2 do found[#found + 1] = has(ARGV[i], ARGV[i + 1]) and 1 or 0 end
return found
