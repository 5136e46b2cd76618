-- living.lua: the workers that keep a namespace from being converted: those that were seen lately, and those that hold
-- leases that run.
--- @include layout
--- @include lives
--- @include stored
--- @include digits
local MOST_WORKERS, MOST_NAMED = 1000, 10 -- of one call; and of those seen lately whose leases it reads
local MOST_HELD, MOST_LEASES = 100, 2000 -- that are read of one worker, and about so many by one call

-- Return how many leases a worker holds, when the last of the first ones ends, and how many it has read.
local function leases_of(worker)
  local key, last = P .. "held:" .. worker, 0
  local jids = redis.call("ZRANGE", key, 0, MOST_HELD - 1)
  for i, job in ipairs(peek(jids, "queue")) do
    local expiry = job[1] and redis.call("ZSCORE", queue_key(job[1], "running"), jids[i])
    last = math.max(last, tonumber(expiry or nil) or 0)
  end
  return #jids < MOST_HELD and #jids or redis.call("ZCARD", key), last, #jids
end

-- Return an array for each worker that was seen after a time: its name, when it was seen, how many leases it holds, and
-- when the last one ends; zeros after the first workers.
local function workers_since(index, time)
  local seen, living = redis.call(
    "ZREVRANGEBYSCORE", P .. index, "+inf", "(" .. digits(time), "WITHSCORES", "LIMIT", 0, MOST_WORKERS), {}
  for i = 1, #seen, 2 do
    local n, last = 0, 0
    if #living < MOST_NAMED then n, last = leases_of(seen[i]) end
    living[#living + 1] = { seen[i], tonumber(seen[i + 1]), n, last }
  end
  return living
end

-- Return the same of workers that were not seen since, and hold leases that run; and how many the next call skips, -1
-- after the last. They come by no more leases.
local function holders_before(index, time, skipped)
  local seen, holders, read = redis.call(
    "ZREVRANGEBYSCORE", P .. index, digits(time), "-inf", "WITHSCORES", "LIMIT", skipped, MOST_WORKERS), {}, 0
  for i = 1, #seen, 2 do
    if read >= MOST_LEASES then return holders, skipped end
    local n, last, n_read = leases_of(seen[i])
    if last > now then holders[#holders + 1] = { seen[i], tonumber(seen[i + 1]), n, last } end
    read, skipped = read + n_read, skipped + 1
  end
  return holders, #seen == 2 * MOST_WORKERS and skipped or -1
end
