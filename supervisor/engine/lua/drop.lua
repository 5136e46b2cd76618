#!lua flags=allow-oom
-- drop.lua — delete the matching jobs of one slice of a place. A job that waits for them fails, or runs.
--
-- Called by: deleting.drop, deleting.drop_given (supervisor/engine/commands/deleting.py)
-- Holds:     INV-3 the worker of a deleted job has lost its lease
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   queue
-- ARGV[3]   place: waiting, front, scheduled, depends, parked, apart, running, recurring, in; "lane:" and its name;
--           "persistent": the running persistent jobs; "given": the listed jids, whatever their data
-- ARGV[4]   offset: number of jobs to skip
-- ARGV[5]   count, the most jobs to examine, 1 to 1000
-- ARGV[6]   "=" and a lane: only its jobs; "": all lanes
-- ARGV[7]   kind of data: only jobs with equal data; "": all jobs
-- ARGV[8]   that data
-- ARGV[9]   name of the actor; "" = unknown
-- ARGV[10..] jids
--
-- Returns   array: the offset to go on with, -1 at the end of the place; how many were deleted; array of their jids
--           (not of recurring and in); array of jids whose data only Python can compare: entries, and objects of the
--           same size. Entries of `in` that must be decoded become jobs instead.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include entries
--- @include recurrence
--- @include retention
--- @include acts
--- @rest
local queue, part, offset, count = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local of_lane, kind, data = ARGV[6], ARGV[7], ARGV[8]
local lane = string.match(part, "^lane:(.*)$")
local key = lane and lanes.line(queue, lane) or queue_key(queue, part == "persistent" and "running" or part)
local has_number = lane or part == "waiting" or part == "scheduled"
local has_keys = kind == "json" and string.find(data, "{", 1, true)
local deleted, unjudged = {}, {}

local function matches(rec)
  if of_lane ~= "" and "=" .. (rec.lane or "") ~= of_lane then return false end
  if part == "persistent" and not rec.persistent then return false end
  if kind == "" then return true end
  if rec.bytes == "entry" then
    unjudged[#unjudged + 1] = rec.jid
    return false
  end
  if (kind == "bytes") ~= (rec.bytes ~= nil) or rec.size and tonumber(rec.size) ~= #data then return false end
  local stored = data_of(rec.jid)
  if stored == data then return true end
  --   Objects may be equal with their keys in another order. They have the same size then.
  if has_keys and stored and #stored == #data then unjudged[#unjudged + 1] = rec.jid end
  return false
end

local function delete(rec)
  retention.cancel(rec, ARGV[9])
  deleted[#deleted + 1] = rec
end

local function drop_entries()
  if kind ~= "" or of_lane ~= "" then return entries.take_in(queue, count), 0 end
  local n = math.min(count, redis.call("LLEN", P .. "in:" .. queue))
  if n > 0 then shift(P .. "in:" .. queue, n) end
  return n, n
end

local function drop_recurring()
  local jids = redis.call("ZRANGE", key, 0, count - 1)
  for _, jid in ipairs(jids) do
    local pattern = recurrence.read(jid)
    if pattern then recurrence.finish(pattern) else moves.phantom(key, jid, jid) end
  end
  return #jids, #jids
end

if part == "in" or part == "recurring" then
  local is_done, result, n = pcall(part == "in" and drop_entries or drop_recurring)
  if not is_done then
    entries.handle_error(result)
    return { 0, 0, {}, {} }
  end
  if n > 0 then acts.note(ARGV[9], "delete", "queue", { queue }, "", "", n) end
  commit()
  return { result == 0 and -1 or 0, n, {}, {} }
end

local given = part == "given"
local members = given and { unpack(ARGV, 10) } or redis.call("ZRANGE", key, offset, offset + count - 1)
local missed, passed = 0, #members
for i, member in ipairs(members) do
  if retention.is_spent() then
    passed = i - 1
    break
  end
  local jid = has_number and string.sub(member, 14) or member
  local rec = read_job(jid)
  if given then
    if rec and rec.queue == queue and rec.state ~= "complete" and rec.state ~= "failed" then delete(rec) end
  elseif not rec or rec.queue ~= queue then
    if lane then lanes.strike(queue, lane, member) end
    moves.phantom(key, member, jid)
    missed = missed + 1
  elseif matches(rec) then
    delete(rec)
  end
end
local jids = retention.propagate(deleted, "was deleted")
if #jids > 0 and (kind ~= "" or given) then
  acts.note(ARGV[9], "cancel", "job", jids)
elseif #jids > 0 and of_lane ~= "" then
  acts.note(ARGV[9], "delete", "lane", { string.sub(of_lane, 2) }, queue, "", #jids)
elseif #jids > 0 then
  acts.note(ARGV[9], "delete", "queue", { queue }, "", "", #jids)
end
commit()
local following = #members < count and passed == #members and -1 or offset + passed - #deleted - missed
return { following, #jids, jids, unjudged }
