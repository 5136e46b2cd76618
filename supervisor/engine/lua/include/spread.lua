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

-- A spread has the number of times of each length: most jobs of a batch share theirs.
local function add_time(s, ms)
  if ms < 0 then ms = 0 end
  s[ms] = (s[ms] or 0) + 1
end

-- Return number, mean and sum of the squared distances of a spread.
local function moments_of(s)
  local n, sum, m2 = 0, 0, 0
  for ms, times in pairs(s) do n, sum = n + times, sum + times * ms end
  local mean = sum / n
  for ms, times in pairs(s) do m2 = m2 + times * (ms - mean) * (ms - mean) end
  return n, mean, m2
end

-- Return the fields of a day's statistics with these times added, as HSET takes them; and whether there were none.
local function summed_spread(name, kind, s)
  local key, n, mean, m2 = P .. "stats:" .. name, moments_of(s)
  local count, average, squares = kind .. ".n", kind .. ".mean", kind .. ".m2"
  local had = redis.call("HMGET", key, count, average, squares)
  local n_before, delta = tonumber(had[1]) or 0, mean - (tonumber(had[2]) or 0)
  local all = n_before + n
  mean = mean - delta * n_before / all
  m2 = m2 + (tonumber(had[3]) or 0) + delta * delta * n * n_before / all
  return { key, count, all, average, mean, squares, m2 }, not had[1]
end

-- Return the same for its histogram.
local function summed_cells(name, kind, s)
  local key, letter, fields, counts, cells = P .. "histogram:" .. name, string.sub(kind, 1, 1), {}, {}, {}
  for ms, times in pairs(s) do
    local cell = cell_of(ms)
    cells[cell] = (cells[cell] or 0) + times
  end
  for cell, times in pairs(cells) do
    fields[#fields + 1] = letter .. cell
    counts[#counts + 1] = times
  end
  local had, set = redis.call("HMGET", key, unpack(fields)), { key }
  for i, field in ipairs(fields) do
    set[2 * i], set[2 * i + 1] = field, (tonumber(had[i]) or 0) + counts[i]
  end
  return set, not had[1]
end
