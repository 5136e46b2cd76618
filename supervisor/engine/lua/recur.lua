#!lua
-- recur.lua — create, replace or change a recurring job.
--
-- Called by: writes.recur, writes.update_recurring (supervisor/engine/commands/writes.py)
-- Holds:     INV-12 a recurrence stays until it is cancelled
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   "recur" (create or replace, keeping the count) or "update" (change what is given)
-- ARGV[3]   queue; "" = unchanged
-- ARGV[4]   jid of the recurrence
-- ARGV[5]   klass; "" = unchanged
-- ARGV[6]   kind of data ("json" or "bytes"); "" = unchanged
-- ARGV[7]   data
-- ARGV[8]   ms from now to the first time | ""
-- ARGV[9]   first time in unix ms | ""; without either the next time stays, or moves by the change of the interval
-- ARGV[10]  number of fields
-- ARGV[11..] fields and values: every in ms, cron, tz, backlog, options of put, tags a line each; "" unsets one
--
-- Returns   1, or 0 for an update of an unknown recurrence.
-- Errors    REFUSED for a new queue above 100,000; WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include recurrence
local verb, queue, jid, klass, kind = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local before = recurrence.read(jid)
if verb == "update" and not before then return 0 end
local pattern, tags = { jid = jid, count = before and before.count }, nil
if verb == "update" then
  for field, value in pairs(before) do pattern[field] = value end
end
if queue ~= "" then pattern.queue = queue end
if klass ~= "" then pattern.klass = klass end
for i = 11, 10 + 2 * ARGV[10], 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  if field == "tags" then tags = value else pattern[field] = value ~= "" and value or nil end
end
local function next_time()
  local delay, was = tonumber(ARGV[8]), tonumber(before and before.next)
  if ARGV[9] ~= "" or delay then return tonumber(ARGV[9]) or now + delay end
  if was and before.every and pattern.every then return was + pattern.every - before.every end
  return was or now
end
pattern.next = next_time()

if before then place(recurrence.key(before.queue), jid, false) end
place(recurrence.key(pattern.queue), jid, pattern.next)
if kind ~= "" then
  pattern.bytes = kind == "bytes" and 1 or nil
  store(P .. "recurdata:" .. jid, ARGV[7])
end
if tags or verb == "recur" then
  pattern.tagged = tags and tags ~= "" and 1 or nil
  if pattern.tagged then store(P .. "recurtags:" .. jid, tags) else drop(P .. "recurtags:" .. jid) end
end
plan_fields(P .. "recur:" .. jid, pattern, before and read_fields(P .. "recur:" .. jid) or {})
stage.check_room(pattern.queue)
stage.know_queue(pattern.queue)
wake(pattern.queue)
commit()
return 1
