#!lua flags=allow-oom
-- unfail.lua — put failed jobs back into a queue, oldest first, with their data or with new data.
--
-- Called by: job_changes.unfail, job_changes.unfail_jobs (supervisor/engine/commands/job_changes.py)
-- Holds:     INV-3 each begins a new stage
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   group; "" = any, with jids
-- ARGV[3]   queue; "" = each job's own
-- ARGV[4]   count, most jobs to move, 1 to 1000
-- ARGV[5]   klass; "" = unchanged
-- ARGV[6]   kind of new data, "json" or "bytes"; "" = unchanged
-- ARGV[7]   the data
-- ARGV[8]   name of the actor; "" = unknown
-- ARGV[9]   choice that each job must match, as in include/chosen.lua; "" = any
-- ARGV[10..] jids of the only jobs to move; none = those of the group
--
-- Returns   how many of the group's 1,000 oldest jobs were moved. An entry that is still no valid job stays failed, and
--           so does a job whose claim another job holds by now.
-- Errors    REFUSED for a new queue above 100,000; WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include stage
--- @include entries
--- @include chosen
--- @include acts
local group, klass, kind, data, moved = ARGV[2], ARGV[5], ARGV[6], ARGV[7], {}
local key, choice = P .. "failed:" .. group, choice_in(ARGV[9])

-- Return whether another job holds the claim of this one.
local function is_claimed(rec, queue)
  local holder = rec.unique and claims.holder(queue, rec.unique)
  return holder and holder ~= rec.jid
end

local function move(rec)
  local queue = ARGV[3] ~= "" and ARGV[3] or rec.queue
  if rec.entry and klass == "" and (kind == "" or rec.klass == "broken") then
    return kind == "" and entries.read_again(rec, queue)
  end
  if is_claimed(rec, queue) then return false end
  moves.leave(rec)
  rec.progress = nil
  drop(P .. "progress:" .. rec.jid)
  if klass ~= "" then rec.klass, rec.shapes = klass, nil end
  rec.entry = nil
  stage.begin(rec, queue)
  if kind ~= "" then stage.set_data(rec, kind, data) end
  publish_job_event("job.put", rec)
  moves.to_waiting(rec)
  return true
end

-- Return whether a job has failed, and matches the choice.
local function is_chosen(rec)
  if not rec or rec.state ~= "failed" or group ~= "" and rec.group ~= group then return false end
  return chosen_as(rec, choice) ~= nil
end

if ARGV[3] ~= "" then stage.check_room(ARGV[3]) end
local named = { unpack(ARGV, 10) }
for _, jid in ipairs(#named > 0 and named or redis.call("ZRANGE", key, 0, 999)) do
  if #moved == tonumber(ARGV[4]) then break end
  local rec = read_job(jid)
  if is_chosen(rec) then
    if move(rec) then moved[#moved + 1] = jid end
  elseif #named == 0 then
    moves.phantom(key, jid, jid)
  end
end
if #moved > 0 then acts.note(ARGV[8], "retry", "job", moved, ARGV[3], group) end
commit()
return #moved
