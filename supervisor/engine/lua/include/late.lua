-- late.lua: brings jobs of a queue to their places when they may go on: after the loss of a worker, at their time, by a
-- recurrence, as entries, or with room under a limit.
--- @include death
--- @include recurrence
--- @include entries
--- @include apart
--- @include retention
--- @module
-- Bring back jobs that have lost their workers. Return how many ids were read.
local function take_over(queue, most)
  local expired, examined = death.expired_jobs(queue, most)
  local freed = 0
  for _, rec in ipairs(expired) do
    if retention.is_spent() then break end
    if death.lose(rec) == "waiting" then moves.to_front(rec) end
    freed = freed + 1
  end
  return freed, examined == most or freed < #expired, examined
end

local function promote(queue, most)
  local key = queue_key(queue, "scheduled")
  local members = redis.call("ZRANGEBYSCORE", key, "-inf", now, "WITHSCORES", "LIMIT", 0, most)
  for i = 1, #members, 2 do
    local member = members[i]
    local jid = string.sub(member, 14)
    local rec = read_job(jid)
    if left_already(key, member) then
      --       an entry of another queue of this lease has replaced it
    elseif not (rec and rec.state == "scheduled" and rec.queue == queue and rec.seq) then
      moves.phantom(key, member, jid)
    else
      moves.leave(rec)
      rec.ready = tonumber(members[i + 1])
      if rec.turn then moves.to_front(rec) else moves.to_waiting(rec) end
    end
  end
  return #members == 2 * most, #members / 2
end

-- Bring jobs to their places. `arrivals` names the kinds that have something: expired, due, spawns, entries, limited;
-- and says how many of the jobs apart `worker` wants. At most `most` of each kind move, and `all` together; the first
-- kinds leave a quarter to parked jobs and those apart, half of it to these. Return how many jobs had been running,
-- whether there is more, and how many moved.
function late.bring(queue, most, all, arrivals, due_crons, worker)
  local freed, more, n = 0, false, 0
  local kept = (arrivals.limited or arrivals.apart) and math.floor(all / 4) or 0
  local function left() return math.max(0, math.min(most, all - kept - n)) end
  local function count(is_more, came) more, n = more or is_more, n + came end
  moves.served = queue
  if redis.call("ZSCORE", P .. "quiet", queue) then place(P .. "quiet", queue, false) end
  if arrivals.expired then
    local is_more, examined
    freed, is_more, examined = take_over(queue, left())
    count(is_more, examined)
  end
  if arrivals.due then count(promote(queue, left())) end
  if arrivals.spawns then count(recurrence.spawn_due(queue, left(), due_crons)) end
  if arrivals.entries then
    local taken_in, is_more, weight = entries.take_in(queue, left())
    count(is_more or taken_in == 0 and left() == 0, weight)
  end
  kept = arrivals.apart and math.floor(all / 8) or 0
  if arrivals.expired or arrivals.limited then n = n + #limits.bring_back(queue, left()) end
  if arrivals.apart then n = n + apart.bring_back(queue, arrivals.apart, all - n, worker) end
  moves.served = nil
  return freed, more or n >= all, n
end
