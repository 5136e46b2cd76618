#!lua flags=allow-oom
-- skills.lua — report a worker's klasses, the shapes of data that their handlers take, its queues, and its release.
--
-- Called by: workers.report_skills (supervisor/engine/commands/workers.py)
-- Holds:     INV-12 kept as long as the worker is known, which reports again when it comes back
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   klasses, a line each, at most 1,000
-- ARGV[4]   queues, a line each, at most 1,000
-- ARGV[5]   shapes, a line each: klass, a tab, and a digest; at most 1,000
-- ARGV[6]   name of the release; "" = it has none
--
-- Returns   1, or 0 if the worker is unknown: nothing has changed then.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include config
--- @include apart
local worker, klasses, queues = ARGV[2], lines_of(ARGV[3]), lines_of(ARGV[4])
local exchange, key, has = P .. "worker:" .. worker, P .. "skills:" .. worker, {}
local shapes = { P .. "shapes:" .. worker }
if redis.call("HEXISTS", exchange, "number") == 0 then return 0 end
for _, klass in ipairs(klasses) do has[klass] = true end
apart.forget(worker, has)
for _, klass in ipairs(klasses) do place(key, "klass:" .. klass, now) end
for _, queue in ipairs(queues) do place(key, "queue:" .. queue, now) end
for _, line in ipairs(lines_of(ARGV[5])) do
  local klass, shape = string.match(line, "^(.*)\t(.*)$")
  shapes[#shapes + 1], shapes[#shapes + 2] = klass, shape
end
if #shapes > 1 then
  set_fields(shapes)
  expire(shapes[1], setting_ms("max-worker-age"))
end
del_fields({ exchange, "lacks" })
if ARGV[6] ~= "" then set_fields({ exchange, "release", ARGV[6] }) else del_fields({ exchange, "release" }) end
if #klasses + #queues > 0 then expire(key, setting_ms("max-worker-age")) end
-- The jobs apart that such a worker may have go to its next lease.
for _, queue in ipairs(queues) do
  for _, label in ipairs(apart.klasses(queue)) do
    if has[apart.klass_of(label)] then hint(worker, "klass") end
  end
end
commit()
return 1
