-- stats.lua: what happened in each queue on each UTC day. Collected while the script runs, added up once, by commit().
--- @include clock
--- @include config
--- @include plan
local DAY = 86400
local spreads, tallies = {}, {}

local function day_of(ms) return math.floor(ms / 1000 / DAY) * DAY end

-- The cell of a histogram: seconds to a minute, minutes to an hour, quarters of an hour to a day, hours to three days,
-- days to thirty.
local function cell_of(ms)
  local s = math.floor(ms / 1000)
  if s < 60 then return s end
  if s < 3600 then return 59 + math.floor(s / 60) end
  if s < DAY then return 115 + math.floor(s / 900) end
  if s < 3 * DAY then return 187 + math.floor(s / 3600) end
  return 256 + math.min(30, math.floor(s / DAY))
end

-- Adds a wait or run time to today's.
local function spread(queue, kind, ms)
  ms = math.max(ms, 0)
  local kinds = spreads[queue] or {}
  local s = kinds[kind] or { n = 0, mean = 0, m2 = 0, cells = {} }
  spreads[queue], kinds[kind] = kinds, s
  local delta, cell = ms - s.mean, cell_of(ms)
  s.n = s.n + 1
  s.mean = s.mean + delta / s.n
  s.m2 = s.m2 + delta * (ms - s.mean)
  s.cells[cell] = (s.cells[cell] or 0) + 1
end

-- Adds to a count of a day: today's, or that of a time before.
local function tally(queue, what, by, when)
  local name = day_of(when or now) .. ":" .. queue
  local counts = tallies[name] or {}
  tallies[name], counts[what] = counts, (counts[what] or 0) + by
end

-- What has begun must be found when it is old.
local function opened(index, name) place(P .. index, name, tonumber(string.match(name, "^%-?%d+"))) end

local function add_spread(name, kind, s)
  local key = P .. "stats:" .. name
  local had = redis.call("HMGET", key, kind .. ".n", kind .. ".mean", kind .. ".m2")
  if not had[1] then opened("days", name) end
  local n, mean, m2 = tonumber(had[1]) or 0, tonumber(had[2]) or 0, tonumber(had[3]) or 0
  local all, delta = n + s.n, s.mean - mean
  set_fields({
    key, kind .. ".n", all, kind .. ".mean", mean + delta * s.n / all,
    kind .. ".m2", m2 + s.m2 + delta * delta * n * s.n / all,
  })
end

local function add_cells(name, kind, cells)
  local key, fields, counts = P .. "histogram:" .. name, {}, {}
  for cell, n in pairs(cells) do
    fields[#fields + 1] = string.sub(kind, 1, 1) .. cell
    counts[#counts + 1] = n
  end
  local had, set = redis.call("HMGET", key, unpack(fields)), { key }
  if not had[1] then opened("histograms", name) end
  for i, field in ipairs(fields) do
    set[#set + 1] = field
    set[#set + 1] = (tonumber(had[i]) or 0) + counts[i]
  end
  set_fields(set)
end

local function add_counts(name, counts)
  local key = P .. "stats:" .. name
  for what, by in pairs(counts) do
    local had = tonumber(redis.call("HGET", key, what))
    if not had then opened("days", name) end
    if had or by > 0 then set_fields({ key, what, math.max(0, (had or 0) + by) }) end
  end
end

finish_with(function()
  if setting("stats-history") <= 0 then return end
  for queue, kinds in pairs(spreads) do
    local name = day_of(now) .. ":" .. queue
    for kind, s in pairs(kinds) do
      add_spread(name, kind, s)
      if setting("histogram-history") > 0 then add_cells(name, kind, s.cells) end
    end
  end
  for name, counts in pairs(tallies) do add_counts(name, counts) end
end)
