-- spread.lua: wait and run times of jobs in the statistics of a day: their number, their mean, the sum of the squares
-- of their distances from it, and how many fell into each cell of a histogram. A spread has the number of times by
-- their length in ms: most jobs of a batch share theirs.
--- @include prefix
local DAY = 86400

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

-- Return what HSET takes to add a spread to a day's statistics, and whether there were none; with `has_cells` the same
-- for the day's histogram.
local function summed(name, kind, s, has_cells)
  local key, count, average, squares = P .. "stats:" .. name, kind .. ".n", kind .. ".mean", kind .. ".m2"
  local n, sum, m2, letter, fields, counts = 0, 0, 0, string.sub(kind, 1, 1), {}, {}
  for ms, times in pairs(s) do
    n, sum = n + times, sum + times * ms
    local field = has_cells and letter .. cell_of(ms)
    if field and not counts[field] then fields[#fields + 1] = field end
    if field then counts[field] = (counts[field] or 0) + times end
  end
  local mean = sum / n
  for ms, times in pairs(s) do m2 = m2 + times * (ms - mean) * (ms - mean) end
  local had = redis.call("HMGET", key, count, average, squares)
  local before, delta = tonumber(had[1]) or 0, mean - (tonumber(had[2]) or 0)
  local all = before + n
  m2 = m2 + (tonumber(had[3]) or 0) + delta * delta * n * before / all
  local set = { key, count, all, average, mean - delta * before / all, squares, m2 }
  if not has_cells then return set, not had[1] end
  local cells = { P .. "histogram:" .. name }
  local had_cells = redis.call("HMGET", cells[1], unpack(fields))
  for i, field in ipairs(fields) do
    cells[2 * i], cells[2 * i + 1] = field, (tonumber(had_cells[i]) or 0) + counts[field]
  end
  return set, not had[1], cells, not had_cells[1]
end
