#!lua
-- doorlists.lua — remember the lists of clients that were found behind a door.
--
-- Called by: doors.remember (supervisor/engine/commands/doors.py)
-- Holds:     INV-12 at most 1000 lists a door
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   name of the door
-- ARGV[3]   its source
-- ARGV[4..] the lists, at most 1000, which have entries now
--
-- Returns   how many of them were not known; 0 also if there is no such door any more.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include events
local MOST, SEEN_MS = 1000, 60000 -- how long a list counts as seen just now
local key, text = P .. "doorlists:" .. ARGV[2], redis.call("HGET", P .. "doors", ARGV[2])
if not text or string.match(text, "^[^\n]*\n[^\n]*\n([^\n]*)\n") ~= ARGV[3] then return 0 end

local new = 0
for i = 4, #ARGV do
  local seen = redis.call("ZSCORE", key, ARGV[i])
  if not seen then new = new + 1 end
  if not seen or now - seen > SEEN_MS then place(key, ARGV[i], now) end
end
if new == 0 and not zsets[key] then return 0 end
--   Those that have had no entry for the longest time go.
local surplus = redis.call("ZCARD", key) + new - MOST
for _, list in ipairs(surplus > 0 and first_members(key, surplus) or {}) do place(key, list, false) end
local workers = new > 0 and redis.call("ZREVRANGE", P .. "workers-seen", 0, 999) or {}
for _, worker in ipairs(workers) do hint(worker, "doors") end
commit()
return new
