-- pauses.lua: batches that are paused: their waiting members are parked as under a limit of 0, whose name is a
-- vertical tab and the batch's id. No limit of a job has such a name.
--- @module
--- @include clock
--- @include moves
local QUEUES = 1000
local over = {}

function pauses.key_of(id) return "\v" .. id end

-- Return the batch that a name stands for; nil for that of a limit.
function pauses.batch_of(key) return string.match(key, "^\v(.*)$") end

-- Return the batch whose pause holds back the members of this one: itself, or one around it; false if there is none.
function pauses.over(id)
  if over[id] == nil then
    over[id] = false -- a damaged batch may be around itself
    local batch = redis.call("HMGET", P .. "batch:" .. id, "paused", "parent")
    over[id] = batch[1] and id or batch[2] and pauses.over(batch[2])
  end
  return over[id]
end

-- A batch goes on: leases examine what is parked under it, of up to 1,000 queues before a rank among them. Return the
-- rank of the first of these, before which to go on. No queue comes before others, so none is left out.
function pauses.lift(id, before)
  local key = pauses.key_of(id)
  local name = P .. "limited:" .. key
  local last = math.min(before, redis.call("ZCARD", name)) - 1
  local first = math.max(last + 1 - QUEUES, 0)
  for _, queue in ipairs(last >= 0 and redis.call("ZRANGE", name, first, last) or {}) do
    place(queue_key(queue, "limits"), key, 0)
    moves.wake_unless_served(queue)
  end
  return first
end
