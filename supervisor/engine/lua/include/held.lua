-- held.lua: the leases of a worker, as queries show them.
--- @include config
--- @include stored
-- Workers that were not seen since are forgotten.
local function last_seen_least() return now - setting_ms("max-worker-age") end

-- Return the jids whose leases run, and those whose leases have expired; of the first `last` + 1 leases, or of all
-- (-1).
local function held_by(worker, last)
  local running, stalled = {}, {}
  local jids = redis.call("ZRANGE", P .. "held:" .. worker, 0, last)
  for i, job in ipairs(peek(jids, "queue")) do
    local expiry = job[1] and tonumber(redis.call("ZSCORE", queue_key(job[1], "running"), jids[i]))
    local line = expiry and expiry <= now and stalled or running
    line[#line + 1] = jids[i]
  end
  return running, stalled
end

-- Return the klasses that a worker has reported, and the queues that it has reported, in their order; of both together
-- the first `most`.
local function skills_of(worker, most)
  local klasses, queues = {}, {}
  for _, skill in ipairs(most > 0 and redis.call("ZRANGE", P .. "skills:" .. worker, 0, most - 1) or {}) do
    klasses[#klasses + 1] = string.match(skill, "^klass:(.*)$")
    queues[#queues + 1] = string.match(skill, "^queue:(.*)$")
  end
  return klasses, queues
end
