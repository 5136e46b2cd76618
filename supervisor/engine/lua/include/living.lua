-- living.lua: the workers that keep a namespace from being converted: those that were seen lately, and those that hold
-- leases that run.
--- @include layout
--- @include lives
--- @include stored
local MOST_WORKERS, MOST_HELD = 1000, 100 -- read by one call, of the leases those of one worker

-- Return how many leases a worker holds, and when the last of the first ones ends.
local function leases_of(worker)
  local key, last = P .. "held:" .. worker, 0
  local jids = redis.call("ZRANGE", key, 0, MOST_HELD - 1)
  for i, job in ipairs(peek(jids, "queue")) do
    local expiry = job[1] and redis.call("ZSCORE", queue_key(job[1], "running"), jids[i])
    last = math.max(last, tonumber(expiry or nil) or 0)
  end
  return redis.call("ZCARD", key), last
end

-- Return an array for each such worker: its name, when it was seen, how many leases it holds, when the last one ends.
local function living_workers(index)
  local seen, living = redis.call("ZREVRANGE", P .. index, 0, MOST_WORKERS - 1, "WITHSCORES"), {}
  for i = 1, #seen, 2 do
    local n, last = leases_of(seen[i])
    if tonumber(seen[i + 1]) > now - LIVES or last > now then
      living[#living + 1] = { seen[i], tonumber(seen[i + 1]), n, last }
    end
  end
  return living
end
