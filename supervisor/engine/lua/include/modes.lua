-- modes.lua: what later puts do to the job that holds their unique key: replace its data and time (debounce), nothing
-- for a while (throttle), or add to its data (collect).
--- @module
--- @include clock
--- @include record
--- @include claims
--- @include moves
--- @include stage
local MOST_BYTES = 268435456 -- DATA_BYTES of supervisor/engine/model/bounds.py
local INJECTED_TTL = tonumber(ARGV[1]) and 3600000 or 0 -- as for the starts of limits
local sizes, added, has_added = {}, {}, false -- of the lists that this script adds to: their bytes, and what is added

local function first_key(queue, unique) return P .. "throttled:" .. queue .. "\n" .. unique end

-- Return the jid of the job that was put for a throttled key, as long as its span lasts.
local function first_of(queue, unique)
  local stored = lists[first_key(queue, unique)] or redis.call("LRANGE", first_key(queue, unique), -1, -1)
  local over, jid = string.match(stored[#stored] or "", "^(%d+) (.+)$")
  return over and now < tonumber(over) and jid or nil
end

-- A job that waits again after a run is not added to: it would not be the same at its second start.
local function is_open(rec)
  return rec.collected and not rec.since and not rec.waits_for and (not rec.state or rec.state == "scheduled")
end

local function is_replaceable(rec) return not rec.state or rec.state == "scheduled" and not rec.waits_for end

local function give_up_key(rec)
  claims.release(rec)
  rec.unique = nil
end

-- No more is added to a job, which may run now.
local function close(rec)
  give_up_key(rec)
  if rec.state ~= "scheduled" then return end
  moves.leave(rec)
  rec.ready = now
  moves.to_waiting(rec)
end

-- Return how many bytes a job's list has; nil for data that are no list any more.
local function size_of_list(jid)
  if sizes[jid] then return sizes[jid] end
  local data = replaced[jid] and payloads[jid]
  if data then return #data end
  local size = redis.call("STRLEN", P .. "data:" .. jid)
  return redis.call("GETRANGE", P .. "data:" .. jid, -1, -1) == "]" and size or nil
end

local function add_all()
  for jid, pieces in pairs(added) do
    local rec, text = read_job(jid), table.concat(pieces) .. "]"
    if rec and rec.collected and replaced[jid] then
      local collected = rec.collected
      set_data(rec, "json", string.sub(payloads[jid], 1, -2) .. text)
      rec.collected = collected
    elseif rec and rec.collected then
      overwrite(P .. "data:" .. jid, sizes[jid] - #text, text)
    end
  end
end

-- Add one datum, which is a list of its own, to a job. Return false if it has no room.
local function add(rec, data, most)
  local jid, size = rec.jid, size_of_list(rec.jid)
  if not size or size + #data - 1 > MOST_BYTES or tonumber(rec.collected) >= most then
    close(rec)
    return false
  end
  if not has_added then finish_first_with(add_all) end
  has_added = true
  local pieces = added[jid] or {}
  pieces[#pieces + 1], added[jid] = "," .. string.sub(data, 2, -2), pieces
  sizes[jid] = size + #data - 1
  rec.size = sizes[jid] > dense.INLINE_BYTES and sizes[jid] or nil
  rec.collected = rec.collected + 1
  if rec.collected >= most then close(rec) end
  return true
end

local answers = {}

function answers.throttle(_, put, unique, holder)
  if holder then return holder ~= put.jid and holder end
  return first_of(put.queue, unique)
end

function answers.debounce(rec, put)
  if rec.jid == put.jid then return nil end
  if is_replaceable(rec) then
    stage.put("put", put.queue, rec.jid, put.klass, put.kind, put.data, put.due, put.options)
    return rec.jid
  end
  give_up_key(rec)
end

function answers.collect(rec, put, _, _, most)
  if is_open(rec) then return add(rec, put.data, most) and rec.jid end
  if rec.jid ~= put.jid then give_up_key(rec) end
end

local function parts_of(mode)
  local name, number = string.match(mode, "^(%l+) ?(%d*)$")
  return name, tonumber(number)
end

-- Return the jid that answers a put, which is then done; nil if the job is to be put. The key of a job in another mode
-- is held as that of any unique job.
function modes.answer(put, unique)
  local name, number = parts_of(put.options.mode)
  local holder = claims.holder(put.queue, unique)
  local rec = holder and read_job(holder)
  if name ~= "throttle" and (not rec or rec.mode ~= name) then return holder ~= put.jid and holder or nil end
  return answers[name](rec, put, unique, holder, number) or nil
end

-- Begin the mode of a job that is put; `mode` is nil if it has none from now on. Return when the job may run.
function modes.begin(rec, mode, due)
  local name, number = nil, nil
  if mode then name, number = parts_of(mode) end
  rec.mode = name
  if name == "throttle" then
    local over = string.format("%.0f %s", now + number, rec.jid)
    push(first_key(rec.queue, rec.unique), over, 1, math.max(number, INJECTED_TTL))
  elseif name == "collect" then
    rec.collected, added[rec.jid], sizes[rec.jid] = 1, nil, nil
    if number == 1 then
      give_up_key(rec)
      return nil
    end
  end
  return due
end

-- A job was cancelled: the next put of its key shall run.
function modes.cancelled(rec)
  if rec.mode ~= "throttle" or not rec.unique then return end
  if first_of(rec.queue, rec.unique) == rec.jid then drop(first_key(rec.queue, rec.unique)) end
end
