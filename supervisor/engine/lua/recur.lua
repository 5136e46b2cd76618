#!lua
-- recur.lua — create, replace or change a recurring job.
--
-- Called by: recurrences.recur, recurrences.update (supervisor/engine/commands/recurrences.py)
-- Holds:     INV-12 a recurrence stays until it is cancelled
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   "recur" (create or replace, keeping the count) or "update" (change what is given)
-- ARGV[3]   name of the actor; "" = unknown
-- ARGV[4..] as recurrence.given() reads them: queue, jid of the recurrence, klass, kind of data ("json" or "bytes"),
--           data, ms from now to the first time, first time in unix ms, number of fields, and so many names and values:
--           every in ms, cron, tz, backlog, options of put, tags a line each. "" = not given, or unsets a field.
--           Without either time the next one stays, or moves by the change of the interval.
--
-- Returns   1, or 0 for an update of an unknown recurrence.
-- Errors    REFUSED for a new queue above 100,000; WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include recurrence
--- @include acts
local at = 4
local verb, given = ARGV[2], recurrence.given(ARGV, at)
local before = recurrence.read(given.jid)
if verb == "update" and not before then return 0 end
local pattern = { jid = given.jid, count = before and before.count }
if verb == "update" then
  for field, value in pairs(before) do pattern[field] = value end
end
recurrence.apply(pattern, given)
local function next_time()
  local delay, was = tonumber(given.delay), tonumber(before and before.next)
  if given.first ~= "" or delay then return tonumber(given.first) or now + delay end
  if was and before.every and pattern.every then return was + pattern.every - before.every end
  return was or now
end
pattern.next = next_time()
recurrence.write(before, pattern, given, verb == "recur")
acts.note(ARGV[3], "recur", "recurrence", { given.jid }, pattern.queue)
commit()
return 1
