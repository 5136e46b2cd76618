-- depths.lua: what a lease could take from a queue now: how much it is, the age of the oldest, and what paused lanes
-- hold back. Queries must not cost more the more there is, so what lies beyond the bounds is not read.
--- @include clock
--- @include stored
local READS, FRONT, PRIORITIES, LANES = 5000, 100, 16, 100 -- per call, queue, lane, and queue
local reads -- left for the present queue
local settings_left = READS -- of lanes, for all queues of a call

-- Return how many jobs wait, beside the due ones: in the front, the line without a lane, all lanes, and as entries. And
-- how many of them in the front, and as entries.
local function in_line(queue)
  local front, entries = redis.call("ZCARD", queue_key(queue, "front")), redis.call("LLEN", P .. "in:" .. queue)
  local in_lanes = tonumber(redis.call("GET", P .. "laned:" .. queue) or 0)
  return redis.call("ZCARD", queue_key(queue, "waiting")) + front + in_lanes + entries, front, entries
end

-- Return how many jobs lie in paused lanes; 0 if that would be too much to read.
local function in_paused_lanes(queue)
  local settings, n = P .. "lanes:" .. queue, 0
  local size = redis.call("HLEN", settings)
  if size > settings_left then return 0 end
  settings_left = settings_left - size
  for _, field in ipairs(redis.call("HKEYS", settings)) do
    local lane = string.match(field, "^paused:(.+)$")
    if lane then n = n + redis.call("ZCARD", P .. "lane:" .. queue .. "\n" .. lane) end
  end
  return n
end

-- Return since when a job could be leased, if that is before `oldest`.
local function older(jid, oldest)
  reads = reads - 1
  local times = peek({ jid }, "ready", "since", "put")[1]
  return math.min(oldest, tonumber(times[1] or times[2] or times[3] or nil) or oldest)
end

-- The first job of each priority joined the line before all others of that priority.
local function oldest_in_line(key, oldest)
  local found = redis.call("ZRANGE", key, 0, 0, "WITHSCORES")
  for _ = 1, PRIORITIES do
    if not found[1] or reads <= 0 then break end
    oldest = older(string.sub(found[1], 14), oldest)
    found = redis.call("ZRANGEBYSCORE", key, "(" .. found[2], "+inf", "WITHSCORES", "LIMIT", 0, 1)
  end
  return oldest
end

local function first_of(key, most)
  most = math.min(most, reads)
  return most > 0 and redis.call("ZRANGE", key, 0, most - 1) or {}
end

-- Return for how many ms the oldest job that could be leased has been waiting; -1 if there is none. Entries have no
-- age. `others`: jids of the first jobs of other places. Each of so many queues has its share of the reads, or the last
-- queues would always look empty.
local function age_of_oldest(queue, queues, others)
  reads = math.max(2, math.floor(READS / queues))
  local due = redis.call("ZRANGE", queue_key(queue, "scheduled"), 0, 0, "WITHSCORES")
  local oldest = tonumber(due[2]) or math.huge
  if oldest > now then oldest = math.huge end
  oldest = oldest_in_line(queue_key(queue, "waiting"), oldest)
  for _, jid in ipairs(first_of(queue_key(queue, "front"), FRONT)) do oldest = older(jid, oldest) end
  for i = 1, math.min(#others, reads) do oldest = older(others[i], oldest) end
  for _, jid in ipairs(first_of(queue_key(queue, "apart"), FRONT)) do oldest = older(jid, oldest) end
  for _, lane in ipairs(first_of(queue_key(queue, "lanes"), LANES)) do
    if lane ~= "" then oldest = oldest_in_line(P .. "lane:" .. queue .. "\n" .. lane, oldest) end
  end
  return oldest < math.huge and math.max(0, now - oldest) or -1
end
