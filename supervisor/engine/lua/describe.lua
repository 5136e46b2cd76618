#!lua
-- describe.lua — store the schemas of the data that handlers take, by their digests, and let others live on.
--
-- Called by: data_schemas.describe (supervisor/engine/commands/data_schemas.py)
-- Holds:     INV-12 a schema expires, unless a worker whose handlers take such data tells of it or sweeps
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   digests whose schemas live on, a line each, at most 1,000
-- ARGV[2..] pairs of a digest and its schema, to be stored; at most 1,000
--
-- Returns   array of those digests of ARGV[1] that have no schema here.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include config
--- @include plan
local ttl, lacking = setting_ms("max-worker-age"), {}
for _, digest in ipairs(lines_of(ARGV[1])) do
  local key = P .. "schema:" .. digest
  if redis.call("STRLEN", key) > 0 then expire(key, ttl) else lacking[#lacking + 1] = digest end
end
for i = 2, #ARGV, 2 do
  store(P .. "schema:" .. ARGV[i], ARGV[i + 1])
  expire(P .. "schema:" .. ARGV[i], ttl)
end
commit()
return lacking
