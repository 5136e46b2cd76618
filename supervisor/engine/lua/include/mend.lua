-- mend.lua: carries out the repairs of a check.
--- @include judge
local ASIDE_MS = 2592000000 -- for how long a key that was in the way is kept

local function judge_counters()
  for counter, floor in pairs(floors) do
    local value = is_there(counter, "string") and redis.call("GET", P .. counter) or "0"
    if (counted(value) or -1) < floor then
      local detail = "is " .. value .. ", but more was given out" -- how much more, one slice does not know
      urgent[#urgent + 1] = { kind = "counter-behind", subject = counter, detail = detail, floor = text_of(floor) }
    end
  end
end

local function mend_first(one)
  if one.floor then
    redis.call("SET", P .. one.subject, one.floor)
    return "raised it to " .. one.floor
  end
  for _, name in ipairs(one.aside) do
    if types[name] ~= "none" then
      local aside = P .. "aside:" .. text_of(now) .. ":" .. name
      redis.call("RENAME", P .. name, aside)
      redis.call("PEXPIRE", aside, ASIDE_MS)
      types[name] = "none"
    end
  end
  return "moved it aside, where it stays for 30 days"
end

local function plan_values()
  for name, fields in pairs(values) do
    local set_of, unset = { P .. name }, { P .. name }
    for field, value in pairs(fields) do
      if value then set_of[#set_of + 1], set_of[#set_of + 2] = field, value else unset[#unset + 1] = field end
    end
    if #set_of > 1 then set_fields(set_of) end
    if #unset > 1 then del_fields(unset) end
  end
end

-- A dense record that is changed becomes a full one.
local function plan_full(rec)
  local set_of, token, worker = { P .. hashes[rec] }, holder_of(rec)
  for field, value in pairs(rec) do
    if field ~= "jid" then set_of[#set_of + 1], set_of[#set_of + 2] = field, value end
  end
  drop(P .. hashes[rec])
  set_fields(set_of)
  local payload = dense_records[rec]
  if payload and not strings[P .. "data:" .. rec.jid] then store(P .. "data:" .. rec.jid, payload) end
  if token and rec.state == "running" then
    is_there("held:" .. worker, "zset")
    place(P .. "held:" .. worker, rec.jid, whole(token) + 0.5)
  end
end

local function plan_changes()
  for rec in pairs(changes) do
    if dense_records[rec] ~= nil then
      plan_full(rec)
      changes[rec] = nil
    end
  end
  for rec, fields in pairs(changes) do
    local key = P .. hashes[rec]
    local set_of, unset = { key }, { key }
    for field in pairs(fields) do
      local value = rec[field]
      if value == nil then unset[#unset + 1] = field else set_of[#set_of + 1], set_of[#set_of + 2] = field, value end
    end
    if #set_of > 1 then set_fields(set_of) end
    if #unset > 1 then del_fields(unset) end
  end
  plan_values()
  for _, size in pairs(sizes) do
    if size.dirty then
      place(P .. size.index, size.name, size.n > 0 and (size.index == "tag-counts" and size.n or now))
    end
  end
end
