-- death.lua: what happens to a job whose child died, or whose worker was lost while the job ran.
--- @module
--- @include moves
local LONG_HOLD = 10000 -- ms
-- Return the new state after so many deaths, and the delay in ms: the first has none, later ones back off.
function death.after_death(deaths, limit)
  if limit > 0 and deaths >= limit then return "failed", 0 end
  if deaths == 1 then return "waiting", 0 end
  return "scheduled", math.min(1000 * 4 ^ (deaths - 2), 60000)
end

-- A persistent job has come back: to the front at once, unless it was held so briefly that it would only go round.
-- Return its state; "waiting" means that the caller puts it in front.
function death.come_back(rec)
  if holds[rec.jid] >= LONG_HOLD then
    rec.short = nil
    return "waiting"
  end
  rec.short = (tonumber(rec.short) or 0) + 1
  moves.to_scheduled(rec, now + math.min(1000 * 2 ^ (rec.short - 1), 60000))
  return "scheduled"
end

-- Count a death of a job that has left its place. Return its state; "waiting" means that the caller puts it in front.
function death.die(rec, reason, default_limit, failure)
  rec.deaths, rec.unknown = (tonumber(rec.deaths) or 0) + 1, nil
  local limit = tonumber(rec.max_deaths) or default_limit or setting("max-deaths", rec.queue)
  local state, delay = death.after_death(rec.deaths, moves.is_once(rec) and 1 or limit)
  if rec.persistent then state = death.come_back(rec) end
  tally(rec.queue, "deaths", 1)
  note(rec, "died", { reason = reason, worker = holders[rec.jid] })
  publish_job_event("job.died", rec, { reason = reason, state = state, deaths = rec.deaths, worker = holders[rec.jid] })
  if state == "failed" then
    moves.to_failed(rec, "died:" .. reason, failure)
  else
    store(P .. "failure:" .. rec.jid, failure)
    if state == "scheduled" and not rec.persistent then moves.to_scheduled(rec, now + delay) end
  end
  return state
end

-- A job's lease ended with its worker. That is a death if it had started, else only a mark: a start just before the
-- loss may be unknown. For an at-most-once job it counts. Return as die() does.
function death.lose(rec)
  local _, worker = owner_of(rec)
  local started = rec.started or moves.is_once(rec)
  moves.take_away(rec)
  if not started then
    rec.lost = 1
    moves.was_not_started(rec)
    return "waiting"
  end
  local message = "worker " .. worker .. " was lost while it ran this job"
  return death.die(rec, "lost", nil, failure_of("died:lost", message, worker))
end

-- Return up to `limit` jobs of a queue whose leases ended more than a grace ago, and how many ids were read.
function death.expired_jobs(queue, limit)
  local key = queue_key(queue, "running")
  local ids = redis.call("ZRANGEBYSCORE", key, "-inf", now - setting_ms("grace", queue), "LIMIT", 0, limit)
  local found = {}
  for _, jid in ipairs(ids) do
    local rec = read_job(jid)
    if rec and rec.state == "running" and rec.queue == queue and owner_of(rec) then
      found[#found + 1] = rec
    elseif not left_already(key, jid) then
      moves.phantom(key, jid, jid)
    end
  end
  return found, #ids
end

-- Report which leases have expired since the last report: nothing else happens at that moment.
function death.announce_stalled(queue)
  if not has_listeners() then return end
  local since = tonumber(redis.call("HGET", P .. "announced", queue))
  if not since or since > now then since = "-inf" end -- the clock may have gone back
  local key = queue_key(queue, "running")
  local ended = redis.call("ZRANGEBYSCORE", key, "(" .. since, now, "WITHSCORES", "LIMIT", 0, 1000)
  for i = 1, #ended, 2 do
    local rec = read_job(ended[i])
    local _, worker = owner_of(rec or {})
    if worker then publish_job_event("job.stalled", rec, { worker = worker }) end
  end
  if #ended > 0 then set_fields({ P .. "announced", queue, ended[#ended] }) end
end
