#!lua flags=allow-oom
-- unfail.lua — put failed jobs of one group back into a queue, oldest first. Their last failure stays with them.
--
-- Called by: commands.unfail (supervisor/engine/commands.py)
-- Holds:     INV-3 each begins a new stage
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   group
-- ARGV[3]   queue; "" = each job's own
-- ARGV[4]   count, most jobs to move, 1 to 1000
--
-- Returns   how many jobs were moved.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include clock
--- @include stage
local key, moved = P .. "failed:" .. ARGV[2], 0
for _, jid in ipairs(redis.call("ZRANGE", key, 0, ARGV[4] - 1)) do
  local rec = read_job(jid)
  if rec and rec.state == "failed" and rec.group == ARGV[2] then
    moves.leave(rec)
    stage.begin(rec, ARGV[3] ~= "" and ARGV[3] or rec.queue)
    tell_of("job.put", rec)
    moves.to_waiting(rec)
    moved = moved + 1
  else
    moves.phantom(key, jid, jid)
  end
end
commit()
return moved
