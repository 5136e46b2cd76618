-- turns.lua: the order in which one lease serves several queues.
--- @include allowed
--- @include limits
--- @module
-- Return how many jobs lie in lanes, are entries, or may be put back now.
local function beside(queue)
  local checks, entries_key = queue_key(queue, "limits"), P .. "in:" .. queue
  local n = redis.call("LLEN", entries_key) + lanes.size(queue)
  if redis.call("ZCOUNT", checks, "-inf", now) > 0 then
    n = n + math.max(1, redis.call("ZCARD", queue_key(queue, "parked"))) -- 1: an empty one must be examined, too
  end
  if redis.call("EXISTS", queue_key(queue, "klasses")) == 1 then
    n = n + math.max(1, redis.call("ZCARD", queue_key(queue, "apart")))
  end
  return n
end

-- Return the most jobs of a queue that can be leased now.
function turns.available(queue, takeover)
  local long_ago = now - setting_ms("grace", queue)
  local expired = takeover and redis.call("ZCOUNT", queue_key(queue, "running"), "-inf", long_ago) or 0
  local due = redis.call("ZCOUNT", queue_key(queue, "scheduled"), "-inf", now)
  local spawns = redis.call("ZCOUNT", queue_key(queue, "recurring"), "-inf", now)
  local lying = redis.call("ZCARD", queue_key(queue, "front")) + redis.call("ZCARD", queue_key(queue, "waiting"))
  return allowed(queue, lying + due + expired + spawns + beside(queue), expired)
end

local function next_with_work(queues, available, from)
  for step = 0, #queues - 1 do
    local i = (from - 1 + step) % #queues + 1
    if available[i] > 0 then return i end
  end
end

-- Return the place in `open` of one of the queues there, by weight.
local function drawn(open, weights, sum)
  local left = math.random() * sum
  for at, i in ipairs(open) do
    left = left - weights[i]
    if left < 0 then return at end
  end
  return 1
end

-- Return up to `count` turns: indexes of queues, where queue i has at most available[i] jobs (it is used up).
-- Round-robin goes on behind queue `last`; else each turn is drawn, by weight.
function turns.take(order, queues, available, weights, count, last)
  local found, total, i, open, sum = {}, 0, last, {}, 0
  for one, n in ipairs(available) do
    total = total + n
    if n > 0 then open[#open + 1], sum = one, sum + weights[one] end
  end
  for turn = 1, math.min(count, total) do
    if order == "round-robin" then
      i = next_with_work(queues, available, i + 1)
    else
      local at = drawn(open, weights, sum)
      i = open[at]
      if available[i] == 1 then
        table.remove(open, at)
        sum = sum - weights[i]
      end
    end
    available[i] = available[i] - 1
    found[turn] = i
  end
  return found
end
