-- replay.lua: what the next start of a handler finds of those before it: signals, waits and results of steps. They are
-- the fields of a hash: `signal:<name>` JSON, `wait:<name>` when it is over in ms, `step:<name>` JSON. The record keeps
-- their bytes (`replay`), from which a lease computes the size of its reply, how many are signals, and the bytes of the
-- steps.
--- @module
--- @include record
local MOST_SIGNALS = 100
local MOST_FIELDS = 2100 -- 100 signals, 1,000 steps, 1,000 waits
local STEPS_BYTES = 2 ^ 20 + 1000 * #"step:" -- 1 MiB of names and results
local NEVER = 2 ^ 53 -- the time of a wait without a time-out
local planned = {} -- key and field -> bytes of the value

local function is_full(rec) return rec.replay and redis.call("HLEN", P .. "replay:" .. rec.jid) >= MOST_FIELDS end

-- Return by how many bytes the hash grows if a field is set, and whether that is a new one.
local function growth(rec, field, value)
  local key = P .. "replay:" .. rec.jid
  local before = planned[key .. "\n" .. field] or rec.replay and redis.call("HSTRLEN", key, field) or 0
  return #value - before + (before == 0 and #field or 0), before == 0
end

local function set(rec, field, value, more)
  local key = P .. "replay:" .. rec.jid
  if not rec.replay then drop(key) end -- a release that does not know it may have left that of an earlier job
  rec.replay = (tonumber(rec.replay) or 0) + more
  planned[key .. "\n" .. field] = #value
  set_fields({ key, field, value })
end

-- Keep the result of a step, unless it is one too many. Only a child whose handler has damaged it stores so many.
function replay.save_step(rec, name, result)
  local more, is_new = growth(rec, "step:" .. name, result)
  local bytes = (tonumber(rec.steps) or 0) + more
  if bytes > STEPS_BYTES or (is_new and is_full(rec)) then return end
  rec.steps = bytes
  set(rec, "step:" .. name, result, more)
end

-- Keep a signal, in place of an earlier one of its name. Return false if it would be one too many.
function replay.keep_signal(rec, name, value)
  local more, is_new = growth(rec, "signal:" .. name, value)
  local n = (tonumber(rec.signals) or 0) + (is_new and 1 or 0)
  if n > MOST_SIGNALS then return false end
  rec.signals = n
  set(rec, "signal:" .. name, value, more)
  return true
end

-- Begin a wait, or go on with the one of this name. Return when it is over, in ms: now if its signal is there. Return
-- nil if it would be one too many.
function replay.begin_wait(rec, name, timeout)
  local key, field = P .. "replay:" .. rec.jid, "wait:" .. name
  local found = rec.replay and redis.call("HMGET", key, "signal:" .. name, field) or {}
  if found[1] then return now end
  if found[2] then return tonumber(found[2]) end
  if is_full(rec) then return nil end
  local over = timeout and math.min(now + timeout, NEVER) or NEVER
  set(rec, field, digits(over), growth(rec, field, digits(over))) -- which refuses a foreign key
  return over
end
