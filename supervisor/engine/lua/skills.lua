#!lua flags=allow-oom
-- skills.lua — report the klasses that a worker has handlers for, and the queues that it serves.
--
-- Called by: writes.skills (supervisor/engine/commands/writes.py)
-- Holds:     INV-12 kept as long as the worker is known, which reports again when it comes back
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   klasses, a line each, at most 1,000
-- ARGV[4]   queues, a line each, at most 1,000
--
-- Returns   1, or 0 if the worker is unknown: nothing has changed then.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include config
--- @include apart
local worker, klasses, queues = ARGV[2], lines_of(ARGV[3]), lines_of(ARGV[4])
local exchange, key, has = P .. "worker:" .. worker, P .. "skills:" .. worker, {}
if redis.call("HEXISTS", exchange, "number") == 0 then return 0 end
for _, klass in ipairs(klasses) do has[klass] = true end
apart.forget(worker, has)
for _, klass in ipairs(klasses) do place(key, "klass:" .. klass, now) end
for _, queue in ipairs(queues) do place(key, "queue:" .. queue, now) end
del_fields({ exchange, "lacks" })
if #klasses + #queues > 0 then expire(key, setting_ms("max-worker-age")) end
-- The jobs apart that such a worker may have go to its next lease.
for _, queue in ipairs(queues) do
  for _, klass in ipairs(apart.klasses(queue)) do
    if has[klass] then hint(worker, "klass") end
  end
end
commit()
return 1
