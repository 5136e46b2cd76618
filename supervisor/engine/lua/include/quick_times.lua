-- quick_times.lua: the times that a quick path adds to the statistics of a queue.
--- @include clock
--- @include config
--- @include spread
-- Add to `sets` what HSET takes to count these times. False if the day's statistics or histogram must be opened first.
local function count_times(sets, queue, kind, s)
  if next(s) == nil or setting("stats-history") <= 0 then return true end
  local name = day_of(now) .. ":" .. queue
  local fields, is_new = summed_spread(name, kind, s)
  if is_new then return false end
  sets[#sets + 1] = fields
  if setting("histogram-history") <= 0 then return true end
  fields, is_new = summed_cells(name, kind, s)
  sets[#sets + 1] = fields
  return not is_new
end
