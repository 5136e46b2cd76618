#!lua flags=allow-oom
-- follow.lua — have the end of a job told in its stream, for a reader.
--
-- Called by: waits.follow (supervisor/engine/commands/waits.py)
-- Holds:     INV-12 the stream of a job that has ended expires
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   jid
--
-- Returns   array: how the job has ended (complete, failed, cancelled; "" = it has not; "gone" = only its stream is
--           left, which says how), and the id of the stream's last entry; nil if there is no such job.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include streams
local jid = ARGV[2]
local rec = read_job(jid)
if not rec then
  if redis.call("EXISTS", P .. "stream:" .. jid) == 1 then return { "gone", "0-0" } end
  return redis.call("ZSCORE", P .. "cancelled", jid) and { "cancelled", "0-0" }
end
if rec.state == "failed" or rec.state == "complete" then return { rec.state, streams.position(rec) } end
streams.begin(rec)
commit()
return { "", streams.position(rec) }
