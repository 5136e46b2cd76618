-- death.lua: the rules of a job whose child died or whose worker was lost while it ran.
--- @include config
--- @include moves
-- The new state after so many deaths, and the delay in ms: the first goes ahead at once, later ones back off.
local function after_death(deaths, limit)
  if limit > 0 and deaths >= limit then return "failed", 0 end
  if deaths == 1 then return "waiting", 0 end
  return "scheduled", math.min(1000 * 4 ^ (deaths - 2), 60000)
end

-- Counts a death of a job that has left its place. Answers its state; "waiting" means that the caller puts it in front.
local function die(rec, reason, default_limit, failure)
  rec.deaths, rec.unknown = (tonumber(rec.deaths) or 0) + 1, nil
  local limit = tonumber(rec.max_deaths) or default_limit or setting("max-deaths", rec.queue)
  local state, delay = after_death(rec.deaths, limit)
  if state == "failed" then
    to_failed(rec, "died:" .. reason, failure)
  else
    store(P .. "failure:" .. rec.jid, failure)
    if state == "scheduled" then to_scheduled(rec, now + delay) end
  end
  return state
end

-- A job whose lease ended with its worker: a death if it had started, else nothing. Answers as die() does.
local function lose(rec)
  local _, worker = owner_of(rec)
  local started = rec.started
  leave(rec)
  if not started then return "waiting" end
  return die(rec, "lost", nil, cjson.encode({
    group = "died:lost", message = "worker " .. worker .. " was lost while it ran this job",
    when = now / 1000, worker = worker,
  }))
end

-- Up to `limit` jobs of a queue whose leases ended more than a grace ago, and how many ids were looked at.
local function expired_jobs(queue, limit)
  local key = queue_key(queue, "running")
  local ids = redis.call("ZRANGEBYSCORE", key, "-inf", now - setting_ms("grace", queue), "LIMIT", 0, limit)
  local found = {}
  for _, jid in ipairs(ids) do
    local rec = read_job(jid)
    if rec and rec.state == "running" and rec.queue == queue then
      found[#found + 1] = rec
    else
      phantom(key, jid, jid)
    end
  end
  return found, #ids
end
