-- parked.lua: what a parked job waits for, by the field `parked` of its record: "klass", a worker that knows its klass;
-- a number, room in that one of its limits; nil if the job is not parked.
local BY_KLASS = "klass"
-- Return the name under which jobs lie apart together: their klass, and behind a tab the shapes of its data that their
-- data do not have, as workers have found.
local function label_of(rec) return rec.shapes and rec.klass .. "\t" .. rec.shapes or rec.klass end
local function waits_for(parked) return parked and (parked == BY_KLASS and "klass" or "limit") or nil end

-- Return the limits of a job, in their order. A record has them in one field, with a tab between two.
local function limits_of(rec)
  local keys = {}
  for key in string.gmatch(rec.limit or "", "[^\t]+") do keys[#keys + 1] = key end
  return keys
end

-- Return the limit under which a job is parked; nil if it has none of that number.
local function full_limit_of(rec) return limits_of(rec)[tonumber(rec.parked)] end
