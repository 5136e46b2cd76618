-- evidence.lua: what a check reads, and the violations that it finds. It trusts nothing: a key may have any type, a
-- field any text. Repairs are planned as violations are found, and sets are read as the plan leaves them. A check that
-- only reads does not commit.
--- @include clock
--- @include exact
--- @include plan
local reports, urgent, floors, types = {}, {}, {}, {}
local records, judged, hashes, changes, sizes, values = {}, {}, {}, {}, {}, {}
local beside, mended_with = {}, {} -- what accompanies a set of that first word; repairs planned at the end
local DAY_MS, HOUR_MS = 86400000, 3600000

-- Record one violation, with its repair if the check repairs.
local function report(kind, subject, detail, done)
  for _, text in ipairs({ kind, subject, detail, done }) do reports[#reports + 1] = text end
end

-- Return whether there is a key of the type that its name implies. A key of another type must go before anything else
-- is repaired, because it blocks every write there.
local function is_there(name, expected)
  local found = types[name]
  if not found then
    found = redis.call("TYPE", P .. name).ok
    types[name] = found
    if found ~= "none" and found ~= expected then
      urgent[#urgent + 1] = {
        kind = "foreign-type", subject = name, detail = "is a " .. found .. " where a " .. expected .. " belongs",
        aside = { name },
      }
    end
  end
  return found == expected
end

-- Dense records are read here once more, because a check shares no code with what it judges.
local LETTERS = { p = "priority", r = "retries", t = "timeout", d = "max_deaths", c = "trace" }
local dense_records = {} -- record -> its payload; false if that lies beside

local function decimal(text, base)
  local n = tonumber(text, base)
  return n and string.format("%.0f", n)
end

-- Return a dense record that a text holds; nil if it holds none.
local function parse_dense(text)
  local rec = {}
  if string.find(text, "^[LS]") then
    local flag, token, popped, worker, rest = string.match(text, "^(.)(%d+) (%d+) ([^\n]+)\n(1.*)$")
    if not flag then return nil end
    rec.owner, rec.popped, rec.started, text = token .. ":" .. worker, decimal(popped), flag == "S" and "1" or nil, rest
  end
  local kind, seq, put, queue, klass, options, payload =
    string.match(text, "^1(%a) (%x+) (%d+)\n([^\n]+)\n([^\n]+)\n([^\n]*)\n(.*)$")
  if not kind or not string.find("jbJB", kind, 1, true) then return nil end
  rec.queue, rec.klass, rec.seq, rec.put = queue, klass, decimal(seq, 16), decimal(put)
  for letter, value in string.gmatch(options, "(%l)(%S+)") do
    if LETTERS[letter] then rec[LETTERS[letter]] = value end
  end
  if string.lower(kind) == "b" then rec.bytes = "1" end
  local is_beside = string.upper(kind) == kind
  if is_beside then rec.size = payload end
  dense_records[rec] = not is_beside and payload
  return rec
end

-- The type is asked for only before a report, because records come by the hundred thousand.
local function read_hash(name)
  local fields = redis.pcall("HGETALL", P .. name)
  if fields.err then is_there(name, "hash") end
  if #fields == 0 then return false end
  local rec = {}
  for i = 1, #fields, 2 do rec[fields[i]] = fields[i + 1] end
  hashes[rec] = name
  return rec
end

local function change(rec, field, value)
  if rec[field] == value then return end
  rec[field] = value
  changes[rec] = changes[rec] or {}
  changes[rec][field] = true
end

local function score_in(name, member)
  local planned = zsets[P .. name] and zsets[P .. name][member]
  if planned ~= nil then return planned or nil end
  return is_there(name, "zset") and tonumber(redis.call("ZSCORE", P .. name, member) or nil) or nil
end

-- Return a job's record of either density; false if there is none. A dense one that was leased runs, unless it lies in
-- `complete`: so a job in neither place is put back where its lease ends, and is never lost.
local function read_record(jid)
  local name = "job:" .. jid
  local text = redis.call("MGET", P .. name)[1]
  if not text then return read_hash(name) end
  local rec = parse_dense(text)
  if not rec then
    types[name] = "string"
    local detail = "is a string that is no record"
    urgent[#urgent + 1] = { kind = "foreign-type", subject = name, detail = detail, aside = { name } }
    return false
  end
  hashes[rec] = name
  if rec.owner then rec.state = score_in("complete", jid) and "complete" or "running" end
  return rec
end

local function size_in(name) return is_there(name, "zset") and redis.call("ZCARD", P .. name) or 0 end

-- Return the size of a set as the plan leaves it.
local function size_after(name)
  local size, stored = size_in(name), types[name] == "zset"
  for member, score in pairs(zsets[P .. name] or {}) do
    local is_in = stored and redis.call("ZSCORE", P .. name, member)
    if score and not is_in then size = size + 1 elseif is_in and not score then size = size - 1 end
  end
  return size
end

-- Return a field of a hash that is not a record, and what the plan makes of it (false: unset).
local function value_in(name, field)
  local planned = values[name] and values[name][field]
  if planned ~= nil then return planned or nil end
  return is_there(name, "hash") and redis.call("HGET", P .. name, field) or nil
end

local function set_value(name, field, value)
  values[name] = values[name] or {}
  values[name][field] = value or false
end

-- Return the whole number of an option, score or time, or nil.
local function whole(text)
  local n = string.match(text or "", "^-?%d+$") and tonumber(text)
  return n and math.abs(n) <= 4 * EXACT and n or nil -- a time may be a sum of now, a delay and an interval
end

-- Return the number of a counter, or nil. It is at most half of the range: a counter that is raised above a damaged one
-- must have room to grow.
local function counted(text)
  local n = whole(text)
  return n and n >= 0 and n <= 2 ^ 51 and n or nil
end

-- Return a number as the scripts write it, or nil. "nan" and "inf" are invalid, because every sum with them would be.
local function number(text)
  local n = string.match(text or "", "^%-?%d[%d%.eE+-]*$") and tonumber(text)
  return n and math.abs(n) < math.huge and n or nil
end

local function is_given(text) return text and text ~= "" end

local function text_of(number) return string.format("%.0f", number) end

-- Return the size of a set by its index: "tags" has the number of jobs of a tag, "groups" only that there are some.
local function size_of(index, set, name)
  local id = set .. name
  if sizes[id] then return sizes[id] end
  local n, listed = size_in(id), score_in(index, name)
  local size = { index = index, name = name, n = n, dirty = false }
  if (n > 0) ~= (listed ~= nil) or index == "tag-counts" and listed and listed ~= n then
    local told = not listed and "none" or index == "tag-counts" and text_of(listed) or "some"
    report("wrong-count", id, "has " .. n .. " jobs, but " .. index .. " says " .. told, "set " .. index .. " right")
    size.dirty = true
  end
  sizes[id] = size
  return size
end

local function resize(size, by) size.n, size.dirty = size.n + by, true end
function beside.tag(tag, by) resize(size_of("tag-counts", "tag:", tag), by) end
function beside.failed(group, by) resize(size_of("groups", "failed:", group), by) end

-- Add to a set, or remove from it (score nil), with its index.
local function move_in(name, member, score)
  if (score ~= nil) == (score_in(name, member) ~= nil) then return end
  local word, rest = string.match(name, "^(%l+):(.*)$")
  if beside[word] then beside[word](rest, score and 1 or -1) end
  place(P .. name, member, score or false)
end

-- Every key that a plan writes to must have been read, or the plan would fail half-way.
local function read_and_wake(queue)
  is_there("bell:" .. queue, "list")
  wake(queue)
end

local function list_queue(queue)
  if score_in("idle", queue) then
    report("idle-queue", queue, "has jobs, but counts as out of use", "took it out of idle")
    place(P .. "idle", queue, false)
  end
  if score_in("queues", queue) then return end
  report("unlisted-queue", queue, "has jobs, but is not among the known queues", "listed it")
  place(P .. "queues", queue, now)
end

-- A number was drawn from a counter. A counter below it would give it a second time.
local function drawn(counter, number)
  if number and number > (floors[counter] or -1) then floors[counter] = number end
end
