#!lua flags=no-writes
-- schemas.lua — the schemas of the data that the live workers take which have a klass and serve a queue.
--
-- Called by: data_schemas.read (supervisor/engine/commands/data_schemas.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
-- ARGV[3]   klass
--
-- Returns   array of schemas, at most 20, those of the worker seen last first; empty if one worker may take other data:
--           it has more schemas, or one that is not here.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include lives
local WORKERS, SCHEMAS = 1000, 20
local queue, klass, known, found = ARGV[2], ARGV[3], {}, {}
local living = redis.call("ZREVRANGEBYSCORE", P .. "workers-seen", "+inf", now - LIVES, "LIMIT", 0, WORKERS)
for _, worker in ipairs(living) do
  local has = redis.call("ZMSCORE", P .. "skills:" .. worker, "klass:" .. klass, "queue:" .. queue)
  local shape = has[1] and has[2] and (redis.call("HGET", P .. "shapes:" .. worker, klass) or "")
  if shape and not known[shape] then
    local schema = redis.call("GET", P .. "schema:" .. shape)
    if not schema or #found == SCHEMAS then return {} end
    known[shape], found[#found + 1] = true, schema
  end
end
return found
