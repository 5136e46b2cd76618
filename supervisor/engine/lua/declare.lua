#!lua
-- declare.lua — put, change and remove the recurring jobs that the code of a release declares.
--
-- Called by: recurrences.declare (supervisor/engine/commands/recurrences.py)
-- Holds:     INV-12 a time that is due comes, whatever changes; the last call decides
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   klasses of the release that do not recur, a line each, at most 1,000
-- ARGV[3]   "1" = nothing changes for those that have been declared before, whichever release has done it
-- ARGV[4..] for each that recurs, at most 100: a digest of what is declared, and recur.lua's arguments from the queue
--           on. Its jid is its klass.
--
-- Returns   two arrays: jids put or changed, and jids removed. What was declared with the same digest before stays as
--           it is, also if it was changed or removed since.
-- Errors    REFUSED for more than 1,000 declared recurring jobs, or a new queue above 100,000; WRONGTYPE for a foreign
--           key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include recurrence
local MOST = 1000
local REMOVED = "-" -- in place of a digest: a release has the klass without a recurring job
local DECLARED, ONLY_MISSING, put, removed = P .. "declared", ARGV[3] == "1", {}, {}

-- Return the time of the next job. One that is due comes, and the same rhythm goes on.
local function next_time(before, pattern, delay, first)
  local was = before and tonumber(before.next)
  if not was then return first or now + delay end
  local is_same = before.every == pattern.every and before.cron == pattern.cron and before.tz == pattern.tz
  if was <= now or is_same then return was end
  return first or math.min(was, now + tonumber(pattern.every))
end

local function declare(at, digest)
  local given = recurrence.given(ARGV, at)
  local told = redis.call("HGET", DECLARED, given.jid)
  if told and (ONLY_MISSING or told == digest) then return end
  local before = recurrence.read(given.jid)
  local pattern = { jid = given.jid, count = before and before.count }
  recurrence.apply(pattern, given)
  pattern.next = next_time(before, pattern, tonumber(given.delay), tonumber(given.first))
  recurrence.write(before, pattern, given, true)
  set_fields({ DECLARED, given.jid, digest })
  put[#put + 1] = given.jid
end

local at = 4
while ARGV[at] do
  declare(at + 1, ARGV[at])
  at = at + 9 + 2 * ARGV[at + 8]
end
if redis.call("HLEN", DECLARED) + #put > MOST then
  error({ err = "REFUSED there are to be more than " .. MOST .. " declared recurring jobs in namespace "
    .. string.sub(P, 2, -3) })
end
for _, klass in ipairs(lines_of(ARGV[2])) do
  local told = redis.call("HGET", DECLARED, klass)
  if told and told ~= REMOVED then
    local pattern = recurrence.read(klass)
    if pattern then recurrence.finish(pattern) end
    set_fields({ DECLARED, klass, REMOVED })
    removed[#removed + 1] = klass
  end
end
commit()
return { put, removed }
