#!lua flags=allow-oom
-- each.lua — cancel, fail or move jobs, or change their priority, if they still match the choice.
--
-- Called by: bulk.cancel, bulk.fail, bulk.move, bulk.set_priority (supervisor/engine/commands/bulk.py)
-- Holds:     INV-1 a job lies in exactly one place; INV-3 the worker of such a job has lost its lease
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   verb: cancel, fail, move, priority
-- ARGV[3]   choice, as in include/chosen.lua
-- ARGV[4]   argument of the verb: "", group, queue, or priority
-- ARGV[5]   for fail: the failure as JSON
-- ARGV[6]   name of the actor; "" = unknown
-- ARGV[7..] jids
--
-- Returns   array: how many jobs were changed, then the jids left: those not cancelled, because others wait for them,
--           and those for another call, because the jobs before them have 5,000 parents and tags, or tell other
--           programs 1 MiB.
-- Errors    REFUSED for a new queue above 100,000; WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include stage
--- @include retention
--- @include chosen
--- @include priorities
--- @include acts
--- @rest
local choice, argument, failure = choice_in(ARGV[3]), ARGV[4], ARGV[5]
local MOST_CHILDREN = 5000 -- read within 20 ms; jobs may depend on the rest
local chosen, order, needed, cancelled = {}, {}, {}, {}
for i = 7, #ARGV do
  local rec = read_job(ARGV[i])
  if rec and not chosen[rec.jid] and chosen_as(rec, choice) then
    chosen[rec.jid], order[#order + 1] = true, rec
  end
end

-- A job is left as well if a job that is left depends on it.
local function leave_out(jid, parents)
  if not chosen[jid] then return end
  chosen[jid], needed[#needed + 1] = nil, jid
  for _, parent in ipairs(parents[jid] or {}) do leave_out(parent, parents) end
end

local function leave_out_needed()
  local parents, needing, examined = {}, {}, 0
  for _, rec in ipairs(order) do
    examined = examined + (rec.kin and redis.call("ZCARD", P .. "dependents:" .. rec.jid) or 0)
    if examined > MOST_CHILDREN then needing[#needing + 1] = rec.jid end
    for _, child_jid in ipairs(rec.kin and examined <= MOST_CHILDREN and kin.needing(rec.jid) or {}) do
      parents[child_jid] = parents[child_jid] or {}
      table.insert(parents[child_jid], rec.jid)
      if not chosen[child_jid] then needing[#needing + 1] = rec.jid end
    end
  end
  for _, jid in ipairs(needing) do leave_out(jid, parents) end
end

-- Return the time of a scheduled job.
local function due_of(rec)
  if rec.state == "depends" then return tonumber(rec.due) end
  if chosen_state(rec) ~= "scheduled" then return nil end
  return tonumber(redis.call("ZSCORE", queue_key(rec.queue, "scheduled"), member_of(rec.jid, rec.seq)))
end

-- Removing a job from many parents and tags is slow, and so is telling other programs of its end: one call does a
-- bounded number.
local function leave_out_costly()
  local undone, told, ends = 0, 0, ARGV[2] == "cancel" or ARGV[2] == "fail"
  for i, rec in ipairs(order) do
    if rec.state == "depends" then undone = undone + redis.call("ZCARD", P .. "dependencies:" .. rec.jid) end
    if ARGV[2] == "cancel" then undone = undone + #tagging.of(rec) end
    if rec.door and ends then told = told + door_ends.cost(rec) end
    if i > 1 and (undone > edges.MOST_UNDONE or told > moves.MOST_TOLD) then leave_out(rec.jid, {}) end
  end
end

local verbs = {}

function verbs.cancel(rec)
  retention.cancel(rec, ARGV[6])
  cancelled[#cancelled + 1] = rec
  return true
end

function verbs.fail(rec)
  moves.take_away(rec)
  drop(P .. "result:" .. rec.jid)
  moves.to_failed(rec, argument, failure)
  return true
end

function verbs.move(rec)
  return stage.put("move", argument, rec.jid, "", "", "", due_of(rec), {}) == 1
end

function verbs.priority(rec)
  priorities.set(rec, argument)
  return true
end

if ARGV[2] == "move" then stage.check_room(argument) end
leave_out_costly()
if ARGV[2] == "cancel" then leave_out_needed() end
local done = {}
for _, rec in ipairs(order) do
  if chosen[rec.jid] and verbs[ARGV[2]](rec) then done[#done + 1] = rec.jid end
end
retention.propagate(cancelled, "was cancelled")
if #done > 0 then acts.note(ARGV[6], ARGV[2], "job", done, "", argument) end
commit()
return { #done, unpack(needed) }
