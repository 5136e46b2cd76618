-- late.lua: jobs of a queue that may go to their places now: what lost its worker, was put off until now, comes again,
-- was pushed by another program, or waited for a limit.
--- @include death
--- @include recurrence
--- @include entries
--- @include apart
--- @module
-- Those that have lost their workers. Answers how many ids were looked at.
local function take_over(queue, most)
  local expired, looked = death.expired_jobs(queue, most)
  for _, rec in ipairs(expired) do
    if death.lose(rec) == "waiting" then moves.to_front(rec) end
  end
  return #expired, looked == most
end

local function promote(queue, most)
  local key = queue_key(queue, "scheduled")
  local members = redis.call("ZRANGEBYSCORE", key, "-inf", now, "WITHSCORES", "LIMIT", 0, most)
  for i = 1, #members, 2 do
    local member = members[i]
    local jid = string.sub(member, 14)
    local rec = read_job(jid)
    if left_already(key, member) then
      -- another queue of this lease has had an entry of its jid
    elseif not (rec and rec.state == "scheduled" and rec.queue == queue and rec.seq) then
      moves.phantom(key, member, jid)
    else
      moves.leave(rec)
      rec.ready = tonumber(members[i + 1])
      if rec.turn then moves.to_front(rec) else moves.to_waiting(rec) end
    end
  end
  return #members == 2 * most
end

-- `come` says of which kinds there is something: expired, due, spawns, entries, limited; and how many of what lies
-- apart `worker` wants. Answers how many jobs had been running, and whether there is more than `most` of a kind.
function late.bring(queue, most, come, due_crons, worker)
  local freed, more = 0, false
  moves.served = queue
  if come.expired then freed, more = take_over(queue, most) end
  if come.due then more = promote(queue, most) or more end
  if come.spawns then more = not recurrence.spawn_due(queue, most, due_crons) or more end
  if come.entries then more = select(2, entries.take_in(queue, most)) or more end
  if come.expired or come.limited then limits.bring_back(queue, most) end
  if come.apart then apart.bring_back(queue, come.apart, worker) end
  moves.served = nil
  return freed, more
end
