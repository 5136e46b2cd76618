#!lua flags=no-writes
-- lanes.lua — the lanes of a queue: what is in them, and how they are set up.
--
-- Called by: lanes.read (supervisor/engine/lanes.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
-- ARGV[3]   "=" and the name of one lane; "" = all
-- ARGV[4]   offset, how many to pass over
-- ARGV[5]   count, most lanes to answer
--
-- Returns   array, one array per lane in the order of their names: lane ("" = the jobs without one), waiting (with
--           those in front), running, stalled, parked, weight, 1 if it is paused else 0. Of the jobs in front, running
--           and parked 10,000 each are looked at. A lane that is asked for is answered, also if there is none.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include clock
--- @include lane_names
local queue, offset, count = ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
local LOOKED_AT = 10000

local function new_counts() return { waiting = 0, running = 0, stalled = 0, parked = 0 } end

local counts = {}
local function add(jid, what)
  local lane = redis.call("HGET", job_key(jid), "lane") or ""
  counts[lane] = counts[lane] or new_counts()
  counts[lane][what] = counts[lane][what] + 1
end

for _, jid in ipairs(redis.call("ZRANGE", queue_key(queue, "front"), 0, LOOKED_AT - 1)) do add(jid, "waiting") end
for _, jid in ipairs(redis.call("ZRANGE", queue_key(queue, "parked"), 0, LOOKED_AT - 1)) do add(jid, "parked") end
local running = redis.call("ZRANGE", queue_key(queue, "running"), 0, LOOKED_AT - 1, "WITHSCORES")
for i = 1, #running, 2 do add(running[i], tonumber(running[i + 1]) <= now and "stalled" or "running") end

local function names()
  if ARGV[3] ~= "" then return { string.sub(ARGV[3], 2) } end
  local found, known = lane_names(queue), {}
  for _, lane in ipairs(found) do known[lane] = true end
  for lane in pairs(counts) do
    if not known[lane] then found[#found + 1] = lane end
  end
  table.sort(found, lies_before)
  return { unpack(found, offset + 1, math.min(offset + count, #found)) }
end

local answer = {}
for i, lane in ipairs(names()) do
  local found = counts[lane] or new_counts()
  local lying = redis.call("ZCARD", lanes.line(queue, lane))
  answer[i] = {
    lane, found.waiting + lying, found.running, found.stalled, found.parked, lanes.weight(queue, lane),
    lanes.is_paused(queue, lane) and 1 or 0,
  }
end
return answer
