-- spread.lua: wait and run times of jobs in the statistics of a day: their number, their mean, and the sum of the
-- squares of their distances from it. A spread has the number of times by their length in ms: most jobs of a batch
-- share theirs.
--- @include prefix
local DAY = 86400

-- Return what HSET takes to add a spread to a day's statistics, and whether there were none.
local function summed(name, kind, s)
  local key, n, sum, m2 = P .. "stats:" .. name, 0, 0, 0
  local count, average, squares = "run.n", "run.mean", "run.m2"
  if kind == "wait" then count, average, squares = "wait.n", "wait.mean", "wait.m2" end
  for ms, times in pairs(s) do n, sum = n + times, sum + times * ms end
  local mean = sum / n
  for ms, times in pairs(s) do m2 = m2 + times * (ms - mean) * (ms - mean) end
  local had = redis.call("HMGET", key, count, average, squares)
  local before, delta = tonumber(had[1]) or 0, mean - (tonumber(had[2]) or 0)
  local all = before + n
  m2 = m2 + (tonumber(had[3]) or 0) + delta * delta * n * before / all
  return { key, count, all, average, mean - delta * before / all, squares, m2 }, not had[1]
end
