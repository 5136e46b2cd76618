#!lua flags=allow-oom
-- batchcancel.lua — close a batch, and delete those of its jobs that have not ended; as many as one call should.
--
-- Called by: batches.cancelled (supervisor/engine/commands/batches.py)
-- Holds:     INV-3 the worker of a deleted job has lost its lease
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   id
-- ARGV[3]   count, the most jobs to delete, 1 to 1000
-- ARGV[4]   name of the actor; "" = unknown
--
-- Returns   array: how many jobs were deleted, how many members have not ended, array of the nested batches among the
--           first of these. A job outside that waits for one of them fails or runs, by its policy. nil if there is no
--           such batch.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include retention
--- @include batches
--- @include acts
local id, cancelled = ARGV[2], {}
if not batches.close(id) then return nil end
local jids, nested = batches.members(id, tonumber(ARGV[3]))

-- A job that waits for another one would fail with it: the jobs that others wait for come after these.
local function cancel(has_dependents)
  for _, jid in ipairs(jids) do
    if retention.is_spent() then return end
    local rec = read_job(jid)
    if not rec or rec.batch ~= id or rec.state == "complete" or rec.state == "failed" then
      batches.member_ended(id, jid, rec and rec.batch == id and rec.state or "cancelled") -- it was not counted
    elseif has_dependents or not rec.kin or edges.child_count(jid) == 0 then
      retention.cancel(rec, ARGV[4])
      cancelled[#cancelled + 1] = rec
    end
  end
end

cancel(false)
if #cancelled == 0 then cancel(true) end
retention.propagate(cancelled, "was cancelled")
if #cancelled > 0 then acts.note(ARGV[4], "cancel", "batch", { id }, "", "", #cancelled) end
local left = batches.pending(id)
commit()
return { #cancelled, left, nested }
