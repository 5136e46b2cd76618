-- door_entries.lua: makes jobs of the entries in the list of another program. What an entry says depends on its format.
--- @module
--- @include rq_entries
--- @include entries
--- @include door_ends
--- @include md5
--- @include exact
--- @include allowed
local LOOK_MS = 5000 -- Sidekiq's own workers look as often at what is due
local MOST_ATTEMPTS = 5 -- after which a message of a client is dead
local MOST_DIGESTED, MOST_ID, MOST_ITEM = 65536, 1048576, 16777216 -- bytes: longer ones take the server too long
local MOST_RETRIES = 1000000 -- that an entry may tell of
local MOST_META = 512 -- bytes of an id that a result has
-- As how many bytes an entry counts beside its own, also if it is only looked at, and one to decode or to digest: by
-- the time that they take.
local ENTRY_COST, DUE_COST, DECODE_COST, DIGEST_COST = 1024, 256, 8, 12
local READ, GONE = {}, { cost = 0 }
local read_bytes = 0 -- by this call, of all doors
local put_jid = nil -- of the entry that is being put, as soon as it is known

-- Return a number as records have it: a whole one, as far as Lua can tell it from others. nil if it is none, which
-- Lua's decoder accepts as JSON.
local function whole_text(value)
  return value == value and string.format("%.0f", math.max(-EXACT, math.min(math.floor(value), EXACT))) or nil
end

-- Each returns what an entry says: id, data, and what else it has; or nil, why it is invalid, and as how many bytes it
-- counts beside its own. GONE: nothing is there any more. `told`: what the end of its job needs to know, if it is not
-- the id. `meta`: what else its result has. `cost`: as how many bytes it counts, if not as those of its data. Numbers
-- are as the entry says them, `due` in unix ms.

-- redis-work-queue drops an id without an item, too.
function READ.rwq(door, id)
  if #id > MOST_ID then return nil, "its id is too large: " .. #id .. " bytes" end
  local size = redis.pcall("STRLEN", door.source .. ":item:" .. id)
  if type(size) == "table" then return nil, "the key of its item holds no string" end
  if size > MOST_ITEM then return nil, "its item is too large: " .. size .. " bytes, above " .. MOST_ITEM end
  local data = redis.call("GET", door.source .. ":item:" .. id)
  return data and { id = id, data = data, kind = "bytes" } or GONE
end

function READ.hworker(_, entry)
  local found, why = entries.parsed(entry, "[")
  if not found then return nil, why end
  local id, at = string.match(entry, '^%s*%[%s*"([^"\\]+)"%s*,%s*()')
  local data = id and string.match(entry, "^(.*)%]%s*$", at) -- without a lazy part, which takes a square of the time
  if not data or #found ~= 2 then return nil, "it is no pair of an id and a job" end
  return { id = id, data = data, kind = "json" }
end

-- The key of a unique task is named by this digest. No entry says whether its task is unique.
function READ.worqr(_, entry)
  local is_short = #entry <= MOST_DIGESTED
  return {
    data = entry, kind = "bytes", told = is_short and md5.hex(entry) or "",
    cost = is_short and DIGEST_COST * (#entry + 64) or nil,
  }
end

-- Return how many retries a job has left. Its first one is number 0.
local function retries_of(found)
  local most = found.retry == false and 0 or type(found.retry) == "number" and found.retry or 25
  local used = type(found.retry_count) == "number" and found.retry_count + 1 or 0
  return math.max(most - used, 0)
end

function READ.sidekiq(_, entry)
  local found, why = entries.parsed(entry)
  if not found then return nil, why end
  local klass = type(found.wrapped) == "string" and found.wrapped or found.class
  if type(klass) ~= "string" or type(found.args) ~= "table" then return nil, "it has no class, or no args" end
  if type(found.jid) ~= "string" or found.jid == "" then return nil, "it has no jid" end
  if type(found.bid) == "string" then return nil, "batches are for Sidekiq's own worker" end
  if found.encrypt == true then return nil, "encrypted arguments are for Sidekiq's own worker" end
  local due = type(found.at) == "number" and found.at * 1000 or nil
  return {
    id = found.jid, data = entry, kind = "sidekiq", klass = klass, due = due,
    options = { retries = retries_of(found) },
  }
end

-- How the base64 of a body ends that has neither callbacks nor chain nor chord, as Celery writes it, and celery.node,
-- which has an empty object there: with spaces in its JSON or without, for each place of its first byte.
local PLAIN_ENDS = {
  "ImNhbGxiYWNrcyI6IG51bGwsICJlcnJiYWNrcyI6IG51bGwsICJjaGFpbiI6IG51bGwsICJjaG9yZCI6IG51bGx9XQ==",
  "YWxsYmFja3MiOiBudWxsLCAiZXJyYmFja3MiOiBudWxsLCAiY2hhaW4iOiBudWxsLCAiY2hvcmQiOiBudWxsfV0=",
  "Y2FsbGJhY2tzIjogbnVsbCwgImVycmJhY2tzIjogbnVsbCwgImNoYWluIjogbnVsbCwgImNob3JkIjogbnVsbH1d",
  "ImNhbGxiYWNrcyI6bnVsbCwiZXJyYmFja3MiOm51bGwsImNoYWluIjpudWxsLCJjaG9yZCI6bnVsbH1d",
  "YWxsYmFja3MiOm51bGwsImVycmJhY2tzIjpudWxsLCJjaGFpbiI6bnVsbCwiY2hvcmQiOm51bGx9XQ==",
  "Y2FsbGJhY2tzIjpudWxsLCJlcnJiYWNrcyI6bnVsbCwiY2hhaW4iOm51bGwsImNob3JkIjpudWxsfV0=",
  "wge31d", "sIHt9XQ==", "LCB7fV0=", "se31d", "LHt9XQ==", "x7fV0=",
}

local function is_plain_task(body)
  for _, ending in ipairs(PLAIN_ENDS) do
    if string.sub(body, -#ending) == ending then return true end
  end
  return false
end

local function why_no_task(found, headers)
  if type(headers.task) ~= "string" or type(headers.id) ~= "string" or headers.id == "" then
    return "it has no task and id in its headers: message protocol 2 is needed"
  end
  if found["content-type"] ~= "application/json" then return "its content is not JSON" end
  if headers.compression then return "it is compressed" end
  if type(found.body) ~= "string" or type(found.properties) ~= "table"
    or found.properties.body_encoding ~= "base64" then
    return "it has no body in base64"
  end
  if not is_plain_task(found.body) then return "callbacks, chains and chords are for Celery's own worker" end
end

-- Return how often Celery's own worker has retried a task before it put it back.
local function retries_before(value)
  return type(value) == "number" and value >= 1 and value <= MOST_RETRIES and value % 1 == 0 and value or nil
end

-- Return the unix time in ms of such a text, also without fraction or with another time zone; nil if it is none.
local function ms_of(text)
  local year, month, day, hour, minute, second, rest =
    string.match(text, "^(%d%d%d%d)%-(%d%d)%-(%d%d)T(%d%d):(%d%d):(%d%d)(.*)$")
  if not year then return nil end
  local fraction, zone = string.match(rest, "^(%.?%d*)(.*)$")
  local sign, zone_hours, zone_minutes = string.match(zone, "^([+-])(%d%d):?(%d%d)$")
  if not sign and zone ~= "" and zone ~= "Z" then return nil end
  month = tonumber(month)
  local from_march = tonumber(year) - (month <= 2 and 1 or 0)
  local of_year = math.floor((153 * (month + (month > 2 and -3 or 9)) + 2) / 5) + tonumber(day) - 1
  local days = 365 * from_march + math.floor(from_march / 4) - math.floor(from_march / 100)
    + math.floor(from_march / 400) + of_year - 719468
  local offset_s = sign and (zone_hours * 3600 + zone_minutes * 60) * (sign == "-" and -1 or 1) or 0
  local seconds = days * 86400 + hour * 3600 + minute * 60 + second - offset_s
  return seconds * 1000 + math.floor((tonumber("0" .. fraction) or 0) * 1000)
end

local function time_of(value) return type(value) == "string" and ms_of(value) or nil end

-- Both count from 0, which is the most urgent one.
local function priority_of(value)
  return type(value) == "number" and value > 0 and value < 256 and value or nil
end

-- Return the members that the result of a task has by these headers, as JSON, each with a comma.
local function meta_of(headers)
  local members = ""
  for _, name in ipairs({ "group", "parent" }) do
    local id = headers[name == "group" and name or "parent_id"]
    if type(id) == "string" and id ~= "" and #id <= MOST_META then
      members = members .. '"' .. name .. '_id":' .. cjson.encode(id) .. ","
    end
  end
  return members ~= "" and members or nil
end

function READ.celery(_, entry)
  local found, why = entries.parsed(entry)
  if not found then return nil, why end
  local headers = type(found.headers) == "table" and found.headers or {}
  why = why_no_task(found, headers)
  if why then return nil, why end
  local options, expires, limits_s = {}, time_of(headers.expires), headers.timelimit
  if expires then options.expires = math.max(expires - now, 1) end
  options.priority = priority_of(found.properties.priority)
  local hard_s = type(limits_s) == "table" and tonumber(limits_s[1])
  if hard_s and hard_s > 0 then options.timeout = hard_s * 1000 end
  return {
    id = headers.id, told = headers.ignore_result == true and "" or nil, data = entry, kind = "celery",
    klass = headers.task, due = time_of(headers.eta), options = options, failures = retries_before(headers.retries),
    meta = meta_of(headers),
  }
end

READ["client-lists"] = function(_, entry)
  local found, why = entries.parsed(entry)
  if not found then return nil, why end
  if found.msg == nil then return nil, "it has no msg" end
  local client, attempts = found.client_id, tonumber(found.attempts) or 0
  if type(client) == "number" then
    local is_exact = client % 1 == 0 and math.abs(client) < EXACT
    client = is_exact and whole_text(client) or string.match(entry, '"client_id"%s*:%s*([%w.+-]+)')
  end
  if type(client) ~= "string" then return nil, "it has no client_id" end
  return {
    data = entry, kind = "client", told = "", options = {
      lane = entries.is_name(client) and client or redis.sha1hex(client),
      retries = math.max(MOST_ATTEMPTS - attempts, 0),
    },
  }
end

READ["rq-json"] = function(door, id)
  local said, why, cost = rq_entries.read(door.source, id)
  return said == false and GONE or said, why, cost
end

-- Each writes what the format's own worker writes when it takes an entry, as far as others look at it.
local NOTE = {}

-- The cleaners of redis-work-queue leave an item alone that has a lease.
function NOTE.rwq(door, id)
  for _, lease in ipairs(door_ends.LEASES) do door_ends.plan("SET", door.source .. lease .. id, door_ends.LEASE) end
  door_ends.plan("LPUSH", door.source .. ":processing", id)
end

-- A job of RQ has left the queue in time, and stays until it ends.
NOTE["rq-json"] = function(door, id) door_ends.plan("PERSIST", rq_entries.key_of(door.source, id)) end

-- Return the door of a name; nil if there is none.
function door_entries.door(name)
  local text = redis.call("HGET", P .. "doors", name)
  if not text then return nil end
  local door, klasses = {}, {}
  door.format, door.lists, door.source, door.queue, door.klass, door.by_klass =
    string.match(text, "^([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n?(.*)$")
  for foreign, klass in string.gmatch(door.by_klass or "", "([^\t\n]+)\t([^\n]+)") do klasses[foreign] = klass end
  door.klasses, door.list = klasses, string.match(door.lists, "^[^\t]+")
  return door
end

local function klass_of(door, said)
  if door.klass ~= "" then return door.klass end
  return said.klass and (door.klasses[said.klass] or said.klass)
end

-- Put the job of an entry. Return true, or false if nothing was to be done; or nil, why not, and the klass.
local function put(door, entry)
  local said, why, cost = READ[door.format](door, entry)
  read_bytes = read_bytes + (said and (said.cost or #said.data) or cost or 0)
  if not said then return nil, why end
  if said == GONE then return false end
  local klass, id = klass_of(door, said), said.id
  if not entries.is_name(klass) then return nil, "its klass is no name of 1 to 64 bytes" end
  local jid = not id and stage.free_jid("door-" .. digits(next_seq())) or entries.is_name(id) and id
    or redis.sha1hex(id)
  put_jid = jid
  local rec, mark = read_job(jid), door.format .. "\n" .. door.source .. "\n"
  if rec and rec.state ~= "complete" and rec.state ~= "failed" then
    if string.sub(rec.door or "", 1, #mark) ~= mark then
      return nil, "its id is that of a living job that did not come by this door", klass
    end
    if door.format == "rwq" and not door_ends.has_item(door.source, id) then rec.again = 1 end
    return false
  end
  local options, due = {}, tonumber(said.due and whole_text(said.due))
  for name, value in pairs(said.options or {}) do
    options[name] = type(value) ~= "number" and value or whole_text(value)
  end
  local answer, refusal = stage.put("put", door.queue, jid, klass, said.kind, said.data, due, options)
  if not answer then return nil, refusal, klass end
  rec = read_job(jid)
  rec.door, rec.failures, rec.meta = mark .. (said.told or id or ""), said.failures, said.meta
  if NOTE[door.format] then NOTE[door.format](door, id) end
  return true
end

local function take_one(door, key, entry)
  put_jid = nil
  local is_put, answer, why, klass = pcall(put, door, entry)
  if not is_put then entries.blame(answer, key, key, door.queue, entry, put_jid or entry) end
  if answer == nil then entries.fail(key, door.queue, entry, why, klass) end
  read_bytes = read_bytes + #entry + ENTRY_COST
end

local function may(...) return redis.acl_check_cmd(...) end

-- Take entries of a list, the oldest first, which RQ has at the left. Return how many, and whether it has more.
local function take_list(door, key, most)
  local n, is_reversed = 0, door.format == "rq-json"
  local length = may("LTRIM", key, "0", "-1") and redis.pcall("LLEN", key)
  if type(length) ~= "number" then return 0, false end
  while n < most and n < length and read_bytes < entries.MOST_BYTES do
    local entry = redis.call("LINDEX", key, is_reversed and n or -n - 1)
    if read_bytes > 0 and read_bytes + #entry > entries.MOST_BYTES then break end
    take_one(door, key, entry)
    n = n + 1
  end
  if n > 0 then shift(key, is_reversed and -n or n) end
  return n, length > n
end

local function at_random(below) return tonumber(string.sub(redis.sha1hex(now), 1, 8), 16) % below end

-- Return the lists of a door, the most urgent one first. Those of clients come in a circle, another one first each
-- time, and only those with entries.
local function lists_of(door, name)
  local lists = {}
  if door.format ~= "client-lists" then
    for list in string.gmatch(door.lists, "[^\t]+") do lists[#lists + 1] = list end
    return lists
  end
  local filled = {}
  for _, list in ipairs(redis.call("ZRANGE", P .. "doorlists:" .. name, 0, -1)) do
    local length = redis.pcall("LLEN", list)
    if type(length) == "number" and length > 0 then filled[#filled + 1] = list end
  end
  local first = #filled > 0 and at_random(#filled) or 0
  for i = 1, #filled do lists[i] = filled[(first + i) % #filled + 1] end
  return lists
end

-- Return whether a due entry of Sidekiq is of a queue. One that is too large to be decoded names its queue before its
-- arguments, as Sidekiq writes it.
local function is_of(queue, entry)
  if not string.find(entry, '"' .. queue .. '"', 1, true) then return false end
  if #entry > entries.MOST_DECODED then return string.match(entry, '^{[^{%[]*"queue":"([^"]*)"') == queue end
  local found = entries.parsed(entry)
  return found and found.queue == queue, true
end

-- Take this door's own entries out of the due ones of a sorted set, from a rank on, until enough bytes of all of them
-- are read. Return how many, and the next rank.
local function take_from(door, key, rank, due, most)
  local n, bytes, _, queue = 0, 0, door_ends.names_in(door.list)
  while rank < due and n < most and bytes < entries.MOST_BYTES and read_bytes < entries.MOST_BYTES do
    local entry = redis.call("ZRANGE", key, rank, rank)[1]
    local is_own, was_decoded = is_of(queue, entry)
    rank, bytes = rank + 1, bytes + DUE_COST + #entry * (was_decoded and DECODE_COST or 1)
    if is_own then
      take_one(door, key, entry)
      place(key, entry, false)
      n = n + 1
    end
  end
  return n, rank
end

-- Sidekiq's workers move due entries to the lists of their queues. A door takes those of its own queue. Others may lie
-- before these, and no call reads all: it reads the first ones, and some from another rank each time.
local function take_due(door, key, most)
  local due = most > 0 and may("ZREM", key, "") and redis.pcall("ZCOUNT", key, "-inf", now / 1000)
  if type(due) ~= "number" then return 0 end
  local n, rank = take_from(door, key, 0, due, most)
  if rank >= due then return n end
  return n + take_from(door, key, math.max(at_random(due), rank), due, most - n)
end

local function take_schedule_of_rq(door, most)
  local ids, key = rq_entries.due(door.source, most)
  local n = 0
  while n < #ids and read_bytes < entries.MOST_BYTES do
    n = n + 1
    take_one(door, key, ids[n])
    place(key, ids[n], false)
  end
  return n
end

-- Make jobs of up to `most` entries of a door. Return how many entries went, whether there are more, and when to look
-- again, unix ms; 0 = when one is pushed.
function door_entries.take(name, most)
  local door = door_entries.door(name)
  if not door or not READ[door.format] or setting("paused", door.queue) > 0 then return 0, false, 0 end
  local n, is_more, look_at = 0, false, 0
  if door.format == "sidekiq" then
    local prefix = door_ends.names_in(door.list)
    n = take_due(door, prefix .. "retry", most)
    n, look_at = n + take_due(door, prefix .. "schedule", most - n), now + LOOK_MS
    is_more = n == most or read_bytes >= entries.MOST_BYTES
  end
  if door.format == "rq-json" then
    n, look_at = take_schedule_of_rq(door, most), now + LOOK_MS
    is_more = n == most or read_bytes >= entries.MOST_BYTES
  end
  local lists, has_clients = lists_of(door, name), door.format == "client-lists"
  if has_clients then look_at = now + LOOK_MS end
  for i, list in ipairs(lists) do
    --   Each client has its share, and of what those before it have left.
    local room = has_clients and math.ceil((most - n) / (#lists - i + 1)) or most - n
    local listed, has_more = take_list(door, list, room)
    n, is_more = n + listed, is_more or has_more
  end
  return n, is_more, look_at
end
