-- allowed.lua: the limit on the running jobs of a queue.
--- @include config
-- Return how many of `most` jobs a queue may start, when so many have just lost their workers.
local function allowed(queue, most, freed)
  if setting("paused", queue) > 0 then return 0 end
  local concurrency = setting("max-concurrency", queue)
  if concurrency <= 0 then return most end
  return math.max(0, math.min(most, concurrency - redis.call("ZCARD", queue_key(queue, "running")) + freed))
end
