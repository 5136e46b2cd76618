#!lua flags=allow-oom
-- each.lua — cancel, fail or move each of some jobs, or change its priority, if it still is what it was chosen as.
--
-- Called by: bulk.cancel, bulk.fail, bulk.move, bulk.set_priority (supervisor/engine/commands/bulk.py)
-- Holds:     INV-1 a job lies in exactly one place; INV-3 whoever ran one has lost it
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   verb: cancel, fail, move, priority
-- ARGV[3]   queue; "" = whatever queue it is of
-- ARGV[4]   states, a comma around each, as in find.lua
-- ARGV[5]   group; "" = any
-- ARGV[6]   what goes with the verb: who cancels them or "", group, queue or priority
-- ARGV[7]   of fail: the failure as JSON
-- ARGV[8..] jids
--
-- Returns   array: to how many it was done, then the jids of those that are not cancelled because others wait for them,
--           and of those that are left to another call, as those before them have 5,000 parents and tags.
-- Errors    REFUSED for a new queue above 100,000; WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include clock
--- @include stage
--- @include retention
--- @include chosen
local queue, states, group, argument, failure = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local MOST_CHILDREN = 5000 -- looked at, in 20 ms: for what lies beyond, others may wait
local chosen, order, needed, cancelled = {}, {}, {}, {}
for i = 8, #ARGV do
  local rec = read_job(ARGV[i])
  if rec and not chosen[rec.jid] and chosen_as(rec, queue, states, group) then
    chosen[rec.jid], order[#order + 1] = true, rec
  end
end

-- What a job waits for that is left is left too, and so on.
local function leave_out(jid, parents)
  if not chosen[jid] then return end
  chosen[jid], needed[#needed + 1] = nil, jid
  for _, parent in ipairs(parents[jid] or {}) do leave_out(parent, parents) end
end

local function leave_out_needed()
  local parents, needing, looked = {}, {}, 0
  for _, rec in ipairs(order) do
    looked = looked + (rec.kin and redis.call("ZCARD", P .. "dependents:" .. rec.jid) or 0)
    if looked > MOST_CHILDREN then needing[#needing + 1] = rec.jid end
    for _, child_jid in ipairs(rec.kin and looked <= MOST_CHILDREN and kin.needing(rec.jid) or {}) do
      parents[child_jid] = parents[child_jid] or {}
      table.insert(parents[child_jid], rec.jid)
      if not chosen[child_jid] then needing[#needing + 1] = rec.jid end
    end
  end
  for _, jid in ipairs(needing) do leave_out(jid, parents) end
end

-- When it may run, of a job that is not to run before.
local function due_of(rec)
  if rec.state == "depends" then return tonumber(rec.due) end
  if chosen_state(rec) ~= "scheduled" then return nil end
  return tonumber(redis.call("ZSCORE", queue_key(rec.queue, "scheduled"), member_of(rec.jid, rec.seq)))
end

-- To take a job away from many parents and tags takes long: beyond some, jobs are left to another call.
local function leave_out_costly()
  local undone = 0
  for i, rec in ipairs(order) do
    if rec.state == "depends" then undone = undone + redis.call("ZCARD", P .. "dependencies:" .. rec.jid) end
    if ARGV[2] == "cancel" then undone = undone + #tagging.of(rec) end
    if i > 1 and undone > edges.MOST_UNDONE then leave_out(rec.jid, {}) end
  end
end

local verbs = {}

function verbs.cancel(rec)
  retention.cancel(rec, argument)
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
  rec.priority = argument ~= "0" and argument or nil
  if rec.parked then
    lines.add(rec)
  elseif not rec.state and not rec.turn then
    place(lanes.line(rec.queue, rec.lane or ""), member_of(rec.jid, rec.seq), argument)
  end
  return true
end

if ARGV[2] == "move" then stage.check_room(argument) end
leave_out_costly()
if ARGV[2] == "cancel" then leave_out_needed() end
local done = 0
for _, rec in ipairs(order) do
  if chosen[rec.jid] and verbs[ARGV[2]](rec) then done = done + 1 end
end
retention.tell_children(cancelled, "was cancelled")
commit()
return { done, unpack(needed) }
