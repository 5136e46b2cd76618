-- moves.lua: a job's places and the moves between them. A record here is a table of the job's fields and its jid.
--- @include clock
--- @include plan
-- What a move may change; the rest of a record is what put was given.
local MOVING = { "state", "owner", "started", "turn", "seq", "failures", "deaths", "interruptions", "unknown", "group" }

local function read_job(jid)
  local flat = redis.call("HGETALL", job_key(jid))
  if #flat == 0 then return nil end
  local rec = { jid = jid }
  for i = 1, #flat, 2 do rec[flat[i]] = flat[i + 1] end
  return rec
end

local function save(rec)
  local key = job_key(rec.jid)
  local set, unset = { key }, { key }
  for _, field in ipairs(MOVING) do
    if rec[field] then
      set[#set + 1] = field
      set[#set + 1] = rec[field]
    else
      unset[#unset + 1] = field
    end
  end
  if #set > 1 then set_fields(set) end
  if #unset > 1 then del_fields(unset) end
end

-- An id without its record: out of the way, and kept where a check finds it.
local function phantom(key, member, jid)
  place(key, member, false)
  place(P .. "phantoms", jid, now)
end

local function owner_of(rec) return string.match(rec.owner, "^(%d+):(.*)$") end

local group_sizes = {}

local function resize_group(group, by)
  local size = group_sizes[group] or redis.call("ZCARD", P .. "failed:" .. group)
  group_sizes[group] = size + by
  place(P .. "groups", group, size + by > 0 and now)
end

-- Takes a job out of the place where it lies. Whatever lease it had is void with it.
local function leave(rec)
  if rec.state == "running" then
    local token, worker = owner_of(rec)
    rec.turn = rec.turn or token
    place(queue_key(rec.queue, "running"), rec.jid, false)
    place(P .. "held:" .. worker, rec.jid, false)
  elseif rec.state == "scheduled" then
    place(queue_key(rec.queue, "scheduled"), member_of(rec.jid, rec.seq), false)
  elseif rec.state == "failed" then
    place(P .. "failed", rec.jid, false)
    place(P .. "failed:" .. rec.group, rec.jid, false)
    resize_group(rec.group, -1)
  elseif rec.state == "complete" then
    place(P .. "complete", rec.jid, false)
  elseif rec.turn then
    place(queue_key(rec.queue, "front"), rec.jid, false)
  else
    place(queue_key(rec.queue, "waiting"), member_of(rec.jid, rec.seq), false)
  end
  rec.state, rec.owner, rec.started, rec.group = nil, nil, nil, nil
end

-- To the front, in the order in which the jobs there were first leased.
local function to_front(rec)
  place(queue_key(rec.queue, "front"), rec.jid, rec.turn)
  ring(rec.queue)
  save(rec)
end

-- To the back of its priority: its turn is over.
local function to_waiting(rec)
  rec.turn, rec.seq = nil, next_seq()
  place(queue_key(rec.queue, "waiting"), member_of(rec.jid, rec.seq), rec.priority or 0)
  ring(rec.queue)
  save(rec)
end

local nearest = {}

-- Rings only if the new time comes before all others to come: the waiting workers know those.
local function schedule(rec, due)
  local key, queue = queue_key(rec.queue, "scheduled"), rec.queue
  if not nearest[queue] then
    local found = redis.call("ZRANGEBYSCORE", key, "(" .. now, "+inf", "LIMIT", 0, 1, "WITHSCORES")
    nearest[queue] = tonumber(found[2]) or math.huge
  end
  if due < nearest[queue] then
    nearest[queue] = due
    ring(queue)
  end
  rec.state = "scheduled"
  place(key, member_of(rec.jid, rec.seq), due)
end

local function to_scheduled(rec, due)
  schedule(rec, due)
  save(rec)
end

local function to_failed(rec, group, failure)
  rec.state, rec.group = "failed", group
  place(P .. "failed", rec.jid, now)
  place(P .. "failed:" .. group, rec.jid, now)
  resize_group(group, 1)
  store(P .. "failure:" .. rec.jid, failure)
  save(rec)
end

-- Nothing of the job remains; it must have left its place.
local function forget(jid)
  drop(job_key(jid))
  drop(P .. "data:" .. jid)
  drop(P .. "failure:" .. jid)
  drop(P .. "result:" .. jid)
end

-- To the front, uncounted: a lease of this worker that it does not, or shall not, hold. False if it was not its own.
local function hand_back(jid, worker)
  local rec = read_job(jid)
  local _, owner = string.match(rec and rec.owner or "", "^(%d+):(.*)$")
  place(P .. "held:" .. worker, jid, false)
  if owner ~= worker then return false end
  leave(rec)
  to_front(rec)
  return true
end
