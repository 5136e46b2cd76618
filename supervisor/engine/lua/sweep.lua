#!lua flags=allow-oom
-- sweep.lua — the light clean, over all queues: jobs of lost workers, what comes again, what is kept too long.
--
-- Called by: commands.sweep (supervisor/engine/commands.py)
-- Holds:     INV-4 no job stays with a lost worker; INV-6 a death only if it had started; INV-12 what is old goes
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   count, most leases to look at, 1 to 1000; as many ended jobs may go
-- ARGV[3]   "1" if jobs of lost workers may be taken
--
-- Returns   array: now in ms, how many jobs were taken from their workers, due cron recurrences as in lease.lua.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include clock
--- @include death
--- @include recurrence
--- @include retention
local count, takeover = tonumber(ARGV[2]), ARGV[3] == "1"
local room, swept, due_crons = count, 0, {}

local function take_expired(queue)
  local jobs, looked = death.expired_jobs(queue, room)
  room = room - looked
  for _, rec in ipairs(jobs) do
    if death.lose(rec) == "waiting" then moves.to_front(rec) end
    swept = swept + 1
  end
end

local function forget_workers()
  local old = now - setting_ms("max-worker-age")
  for _, worker in ipairs(redis.call("ZRANGEBYSCORE", P .. "workers", "-inf", old, "LIMIT", 0, count)) do
    place(P .. "workers", worker, false)
    drop(P .. "worker:" .. worker)
    drop(P .. "mail:" .. worker)
  end
end

local function forget_days(index, kind, days)
  local oldest = day_of(now) - days * DAY
  for _, name in ipairs(redis.call("ZRANGEBYSCORE", P .. index, "-inf", oldest, "LIMIT", 0, count)) do
    place(P .. index, name, false)
    drop(P .. kind .. ":" .. name)
  end
end

for _, queue in ipairs(redis.call("ZRANGE", P .. "queues", 0, -1)) do
  death.announce_stalled(queue)
  if takeover and room > 0 then take_expired(queue) end
  if setting("paused", queue) <= 0 then
    for _, rec in ipairs((recurrence.spawn_due(queue, count, due_crons))) do moves.to_waiting(rec) end
  end
end
retention.prune_completed(0, count)
retention.prune_failed(0, count)
forget_workers()
forget_days("days", "stats", setting("stats-history"))
forget_days("histograms", "histogram", setting("histogram-history"))
commit()
return { now, swept, due_crons }
