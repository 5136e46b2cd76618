#!lua flags=allow-oom
-- cancel.lua — delete jobs, whatever state they are in but complete; all of them or none.
--
-- Called by: commands.cancel (supervisor/engine/commands.py)
-- Holds:     INV-3 whoever ran one has lost it
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2..] jids
--
-- Returns   array of the jids that were cancelled; unknown and complete ones are left alone.
-- Errors    DEPENDENCY if a job that is not listed waits for one of these and its policy is to wait. WRONGTYPE for a
--           foreign key of ours. Nothing has changed then.

--- @include clock
--- @include retention
local listed, cancelled = {}, {}
for i = 2, #ARGV do listed[ARGV[i]] = true end

local function check_children(jid)
  for _, child in ipairs(kin.waiting_children(jid)) do
    if not child.policy and not listed[child.jid] then
      refuse("DEPENDENCY", "job " .. jid .. " cannot be cancelled alone: job " .. child.jid .. " waits for it")
    end
  end
end

for i = 2, #ARGV do
  local jid = ARGV[i]
  local rec = read_job(jid)
  if rec and rec.state ~= "complete" then
    if rec.kin then check_children(jid) end
    retention.cancel(rec)
    cancelled[#cancelled + 1] = rec
  end
end
local answer = retention.tell_children(cancelled, "was cancelled")
commit()
return answer
