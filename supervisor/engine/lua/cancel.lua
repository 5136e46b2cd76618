#!lua flags=allow-oom
-- cancel.lua — delete jobs in any state except complete; all of them or none.
--
-- Called by: job_changes.cancel (supervisor/engine/commands/job_changes.py)
-- Holds:     INV-3 the worker of a deleted job has lost its lease
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   name of the actor; "" = unknown
-- ARGV[3..] jids
--
-- Returns   array of the jids that were cancelled; unknown and complete ones are left alone.
-- Errors    DEPENDENCY if a job that is not listed waits for one of these and its policy is to wait, or if more than
--           5,000 wait for them, or if those before the last have 5,000 or more tags or parents, or tell other
--           programs 1 MiB. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include this_layout
--- @include clock
--- @include retention
--- @include acts
local MOST_CHILDREN = 5000 -- read within 20 ms
local listed, cancelled, examined = {}, {}, 0
for i = 3, #ARGV do listed[ARGV[i]] = true end
read_ahead({ unpack(ARGV, 3) })

local function check_children(jid)
  examined = examined + redis.call("ZCARD", P .. "dependents:" .. jid)
  if examined > MOST_CHILDREN then
    refuse("DEPENDENCY", "for job " .. jid .. " and those before it more than " .. MOST_CHILDREN
      .. " others wait: cancel fewer of them at a time")
  end
  for _, child_jid in ipairs(kin.needing(jid)) do
    if not listed[child_jid] then
      refuse("DEPENDENCY", "job " .. jid .. " cannot be cancelled alone: job " .. child_jid .. " waits for it")
    end
  end
end

for i = 3, #ARGV do
  local jid = ARGV[i]
  local rec = read_job(jid)
  if rec and rec.state ~= "complete" then
    if rec.kin then check_children(jid) end
    retention.cancel(rec, ARGV[2])
    cancelled[#cancelled + 1] = rec
    if retention.is_spent() and i < #ARGV then
      refuse("DEPENDENCY", "job " .. jid .. " and those before it have " .. edges.MOST_UNDONE .. " tags, wait for as"
        .. " many others, or came by doors and tell as much as one call may: cancel fewer of them at a time")
    end
  end
end
local answer = retention.propagate(cancelled, "was cancelled")
if #answer > 0 then acts.note(ARGV[2], "cancel", "job", answer) end
commit()
return answer
