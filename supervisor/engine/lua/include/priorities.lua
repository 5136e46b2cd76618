-- priorities.lua: another priority for a job.
--- @module
--- @include moves
-- A job that waits keeps its age in its line.
function priorities.set(rec, priority)
  rec.priority = priority ~= "0" and priority or nil
  if rec.parked then
    lines.put(rec)
  elseif not rec.state and not rec.turn then
    place(lanes.line(rec.queue, rec.lane or ""), member_of(rec.jid, rec.seq), priority)
  end
end
