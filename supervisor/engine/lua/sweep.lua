#!lua flags=allow-oom
-- sweep.lua — maintenance: take jobs of lost workers, put due recurrences, unpark jobs with room, fail expired jobs,
-- drop what has outlived its retention and results that no dependent needs any more, count batches' members that have
-- ended unseen, count what waits, forget idle queues. One call visits 200 queues, and 1,000 idle ones.
--
-- Called by: maintenance.sweep (supervisor/engine/commands/maintenance.py)
-- Holds:     INV-4 no job stays with a lost worker; INV-6 a death only if it had started; INV-12 retention is enforced
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   count, the most leases to examine, 1 to 1000; also the most ended jobs to drop, and the most to bring back
-- ARGV[3]   "1" if jobs of lost workers may be taken
-- ARGV[4]   offset: number of queues to skip; 0, or what the last call returned
-- ARGV[5]   worker that sweeps, which counts as seen if it numbers its exchanges; "" = none
-- ARGV[6]   name of the actor; "" = unknown, or a worker's own sweep
-- ARGV[7..] queues that this worker serves by name, at most 1,000; they are not forgotten
--
-- Returns   array: now in ms, how many jobs were taken from their workers, the offset to go on with (0 = all is done,
--           also the ends of jobs of which dependents had not been told, the results to release, the ends of batches,
--           and the queues to forget), due cron recurrences as in lease.lua.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include death
--- @include recurrence
--- @include retention
--- @include queues
--- @include batches
--- @include depths
--- @include acts
--- @rest
local count, takeover, offset, worker = tonumber(ARGV[2]), ARGV[3] == "1", tonumber(ARGV[4]), ARGV[5]
local VISITED = 200 -- 10 ms, while Redis does nothing else
local MOST_READ = 1000 -- idle ones cost little
local room, swept, due_crons = count, 0, {}

local function take_expired(queue)
  local jobs, examined = death.expired_jobs(queue, room)
  room = room - examined
  for _, rec in ipairs(jobs) do
    if retention.is_spent() then return end
    if death.lose(rec) == "waiting" then moves.to_front(rec) end
    swept = swept + 1
  end
end

local function forget_workers()
  local old = now - setting_ms("max-worker-age")
  for _, name in ipairs(redis.call("ZRANGEBYSCORE", P .. "workers-seen", "-inf", old, "LIMIT", 0, count)) do
    local holds_leases = redis.call("EXISTS", P .. "held:" .. name) == 1 -- only this index says whose they are
    if name ~= worker and not holds_leases then
      place(P .. "workers-seen", name, false)
      drop(P .. "worker:" .. name)
      drop(P .. "mail:" .. name)
      drop(P .. "skills:" .. name)
      drop(P .. "shapes:" .. name)
    end
  end
end

local function forget_days(index, kind, days)
  local oldest = day_of(now) - days * DAY
  for _, name in ipairs(redis.call("ZRANGEBYSCORE", P .. index, "-inf", oldest, "LIMIT", 0, count)) do
    place(P .. index, name, false)
    drop(P .. kind .. ":" .. name)
  end
end

-- Fail the jobs that have not started by their deadline.
local function fail_expired()
  for _, jid in ipairs(redis.call("ZRANGEBYSCORE", P .. "expiring", "-inf", now, "LIMIT", 0, count)) do
    if retention.is_spent() then return end
    place(P .. "expiring", jid, false)
    local rec = read_job(jid)
    local is_over = not rec or rec.state == "failed" or rec.state == "complete"
    if not is_over and rec.expires and rec.state ~= "running" and not has_started(rec) then
      moves.fail_expired(rec)
    end
  end
end

local came = 0 -- entries, and jobs that were apart or parked and may go on
local waiting = 0 -- jobs of all visited queues
math.randomseed(now % 2 ^ 31)

local function visit(queue)
  waiting = waiting + in_line(queue) + redis.call("ZCARD", queue_key(queue, "apart"))
    + redis.call("ZCOUNT", queue_key(queue, "scheduled"), "-inf", now)
  death.announce_stalled(queue)
  if takeover and room > 0 then take_expired(queue) end
  if apart.next_check(queue) <= now then came = came + apart.bring_back(queue, count, count - came) end
  if setting("paused", queue) <= 0 then
    came = came + select(2, recurrence.spawn_due(queue, count - came, due_crons))
    limits.find_room(queue)
    if limits.next_check(queue) <= now then came = came + #limits.bring_back(queue, count - came) end
  end
end

-- Visit the queues from the offset on that are not idle. Return how many it passed, and whether there are more.
local function visit_queues()
  local names, visited = redis.call("ZRANGE", P .. "queues", offset, offset + MOST_READ - 1), 0
  local idle_since = #names > 0 and redis.call("ZMSCORE", P .. "idle", unpack(names))
  for i, queue in ipairs(names) do
    if not idle_since[i] then
      if visited == VISITED or came >= count then return i - 1, true end
      visited = visited + 1
      if queues.is_unused(queue) then place(P .. "idle", queue, now) else visit(queue) end
    end
  end
  return #names, #names == MOST_READ
end

local passed, more = visit_queues()
if worker ~= "" and redis.call("HEXISTS", P .. "worker:" .. worker, "number") == 1 then
  place(P .. "workers-seen", worker, now)
  expire(P .. "worker:" .. worker, setting_ms("max-worker-age"))
  expire(P .. "skills:" .. worker, setting_ms("max-worker-age"))
  expire(P .. "shapes:" .. worker, setting_ms("max-worker-age"))
  local shapes = redis.call("HGETALL", P .. "shapes:" .. worker)
  for i = 2, #shapes, 2 do expire(P .. "schema:" .. shapes[i], setting_ms("max-worker-age")) end
end
fail_expired()
retention.prune_completed(0, count)
retention.prune_failed(0, count)
local has_more_kept = results.release()
local has_more_batches = batches.look_again()
batches.prune()
forget_workers()
forget_days("days", "stats", setting("stats-history"))
forget_days("histograms", "histogram", setting("histogram-history"))
if offset == 0 then queues.keep({ unpack(ARGV, 7) }) end
local has_more_ends = edges.last_end() > 0 and kin.propagate_ends()
batches.evaluate() -- before an idle queue goes into which a callback is put
-- Done last, because forgetting a queue changes the offsets of those behind it.
if not more then more = queues.forget_idle(count) end
more = has_more_ends or has_more_kept or has_more_batches or more
if layout.state ~= "new" then
  note_course("INCRBY", "u32", 0, offset == 0 and 1 or 0, "INCRBY", "i64", 128, waiting,
    "SET", "i64", 192, layout.token or 0)
end
if ARGV[6] ~= "" then acts.note(ARGV[6], "sweep", "queue", {}, "", "", swept) end -- of jobs that it took
commit()
return { now, swept, more and math.max(offset + passed, 1) or 0, due_crons }
