#!lua flags=allow-oom
-- land.lua — put what has arrived into its places, once it has left the first shard; or forget it.
--
-- Called by: resharding.land, resharding.forget (supervisor/engine/commands/resharding.py)
-- Holds:     INV-1 a job lies where its record says; what was put here meanwhile under a jid stays
--
-- KEYS[1]   prefix of the shard
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   number of the pass
-- ARGV[3]   "land" or "forget"
-- ARGV[4..] kinds and names of things that have arrived
--
-- Returns   array: 1 for each that has landed; 0 if it was forgotten.
-- Errors    REFUSED unless the pass is the present one, or if a piece of a large string is missing. WRONGTYPE for a
--           foreign key of ours. Nothing has changed then.

--- @include resharding
--- @include clock
--- @include parcel
--- @include record
--- @include stage
local MOST, FIELDS = 1000000, 400
local answers, sizes, lives, seq = {}, {}, {}, 0
local of_taken_key -- the thing lands without its unique key, which another job has got meanwhile

local function put_in(key, index, name, member)
  sizes[key] = sizes[key] or redis.call("ZCARD", key)
  if not score_of(key, member[1]) then sizes[key] = sizes[key] + 1 end
  place(key, member[1], member[2])
  place(P .. index, name, index == "tag-counts" and sizes[key] or score_of(P .. index, name) or now)
end

local function land_hash(name, flat)
  local is_job = string.find(name, "^job:")
  drop(P .. name)
  for first = 1, #flat, 2 * FIELDS do
    local set = { P .. name }
    for i = first, math.min(first + 2 * FIELDS - 2, #flat - 1), 2 do
      if not (is_job and of_taken_key and flat[i] == "unique") then
        set[#set + 1], set[#set + 2] = flat[i], flat[i + 1]
      end
      if is_job and flat[i] == "seq" then seq = math.max(seq, tonumber(flat[i + 1])) end
    end
    set_fields(set)
  end
end

local function land_string(name, value)
  local text = string.find(name, "^job:") and value[1]
  if text then seq = math.max(seq, tonumber(dense.fields_of(text).seq)) end
  store(P .. name, value[1])
end

local function land_large(name, size)
  local key = P .. "arriving:" .. name
  if redis.call("STRLEN", key) ~= tonumber(size[1]) then refuse("REFUSED", "a piece of " .. name .. " is missing") end
  rename(key, P .. name)
end

local function land_list(name, values)
  drop(P .. name)
  for _, value in ipairs(values) do push(P .. name, value, MOST, lives[name]) end
end

local function land_stream(name, flat)
  local at = 1
  drop(P .. name)
  while at < #flat do
    local n = tonumber(flat[at + 1])
    append(P .. name, { flat[at], unpack(flat, at + 2, at + 1 + n) }, "0-0", lives[name] or 1)
    at = at + 2 + n
  end
end

local landing = {
  s = land_string, b = land_large, h = land_hash, l = land_list, x = land_stream,
  z = function(name, member) place(P .. name, member[1], member[2]) end,
  t = function(tag, member) put_in(P .. "tag:" .. tag, "tag-counts", tag, member) end,
  g = function(group, member) put_in(P .. "failed:" .. group, "groups", group, member) end,
  c = function(name, by) raise(name, tonumber(by[1])) end,
  j = function(name, member) if not score_of(P .. name, member[1]) then place(P .. name, member[1], member[2]) end end,
  f = function(name, field) if not of_taken_key then set_fields({ P .. name, field[1], field[2] }) end end,
  q = function(queue)
    stage.know_queue(queue)
    wake(queue)
  end,
}
-- Many jobs share these sets and hashes, whose time to live is that of the whole.
local SHARED = { cancelled = true, ["cancelled-by"] = true, dropped = true }
local reading = {
  e = function(name, ms)
    lives[name] = tonumber(ms[1])
    if SHARED[name] then expire(P .. name, lives[name]) end
  end,
  f = function(name, field)
    local holder = redis.call("HGET", P .. name, field[1])
    of_taken_key = of_taken_key or string.find(name, "^unique:") and holder
  end,
}

for i = 4, #ARGV do
  local name = ARGV[i]
  local kind, of = string.match(name, "^(%l+):(.*)$")
  local parts = redis.call("LRANGE", P .. "arriving:" .. name, 0, -1)
  local large = kind == "recur" and "recurdata:" or "data:"
  local is_there = kind ~= "memory" and redis.call("EXISTS", P .. name) == 1
  answers[#answers + 1] = ARGV[3] == "land" and #parts > 0 and not is_there and 1 or 0
  if answers[#answers] == 1 then
    of_taken_key = nil
    parcel.each(parts, 1, reading)
    parcel.each(parts, 1, landing)
  end
  drop(P .. "arriving:" .. name)
  if not renamed[P .. "arriving:" .. large .. of] then drop(P .. "arriving:" .. large .. of) end
  place(P .. "arriving", name, false)
end
if seq > tonumber(layout.seq or 0) then store(P .. "seq", digits(seq)) end
commit()
return answers
