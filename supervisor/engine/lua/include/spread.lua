-- spread.lua: wait and run times of jobs in the statistics of a day: their number, their mean, the sum of the squares
-- of their distances from it, and how many fell into each cell of a histogram.
--- @include keys
local DAY = 86400

local function day_of(ms) return math.floor(ms / 1000 / DAY) * DAY end

-- Return the cell of a histogram: seconds to a minute, minutes to an hour, quarters of an hour to a day, hours to three
-- days, days to thirty.
local function cell_of(ms)
  local s = math.floor(ms / 1000)
  if s < 60 then return s end
  if s < 3600 then return 59 + math.floor(s / 60) end
  if s < DAY then return 115 + math.floor(s / 900) end
  if s < 3 * DAY then return 187 + math.floor(s / 3600) end
  return 256 + math.min(30, math.floor(s / DAY))
end

local function new_spread() return { n = 0, mean = 0, m2 = 0, cells = {} } end

local function add_time(s, ms)
  if ms < 0 then ms = 0 end
  local n, delta, cell, cells = s.n + 1, ms - s.mean, cell_of(ms), s.cells
  local mean = s.mean + delta / n
  s.n, s.mean, s.m2 = n, mean, s.m2 + delta * (ms - mean)
  cells[cell] = (cells[cell] or 0) + 1
end

-- Return the fields of a day's statistics with these times added, as HSET takes them; and whether there were none.
local function summed_spread(name, kind, s)
  local key = P .. "stats:" .. name
  local count, average, squares = kind .. ".n", kind .. ".mean", kind .. ".m2"
  local had = redis.call("HMGET", key, count, average, squares)
  local n, mean, m2 = tonumber(had[1]) or 0, tonumber(had[2]) or 0, tonumber(had[3]) or 0
  local all, delta = n + s.n, s.mean - mean
  mean, m2 = mean + delta * s.n / all, m2 + s.m2 + delta * delta * n * s.n / all
  return { key, count, all, average, mean, squares, m2 }, not had[1]
end

-- Return the same for its histogram.
local function summed_cells(name, kind, cells)
  local key, letter, fields, counts = P .. "histogram:" .. name, string.sub(kind, 1, 1), {}, {}
  for cell, n in pairs(cells) do
    fields[#fields + 1] = letter .. cell
    counts[#counts + 1] = n
  end
  local had, set = redis.call("HMGET", key, unpack(fields)), { key }
  for i, field in ipairs(fields) do
    set[2 * i], set[2 * i + 1] = field, (tonumber(had[i]) or 0) + counts[i]
  end
  return set, not had[1]
end
