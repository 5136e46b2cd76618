#!lua flags=allow-oom
-- sweep.lua — take the jobs of lost workers from them, over all queues, without leasing any.
--
-- Called by: commands.sweep (supervisor/engine/commands.py)
-- Holds:     INV-4 no job stays with a lost worker; INV-6 a death only if it had started
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   count, most leases to look at, 1 to 1000
--
-- Returns   how many jobs were taken from their workers.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include clock
--- @include death
local room, swept = tonumber(ARGV[2]), 0
for _, queue in ipairs(redis.call("ZRANGE", P .. "queues", 0, -1)) do
  if room <= 0 then break end
  local jobs, looked = expired_jobs(queue, room)
  room = room - looked
  for _, rec in ipairs(jobs) do
    if lose(rec) == "waiting" then to_front(rec) end
    swept = swept + 1
  end
end
commit()
return swept
