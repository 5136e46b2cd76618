-- parked.lua: what a parked job waits for, by the field `parked` of its record: "klass", a worker that knows its klass;
-- 1, room under its limits; a vertical tab and a batch, the end of its pause; nil if the job is not parked. And the
-- names of the lines in which such jobs lie.
local BY_KLASS = "klass"
-- Return the name under which jobs lie apart together: their klass, and behind a tab the shapes of its data that their
-- data do not have, as workers have found.
local function label_of(rec) return rec.shapes and rec.klass .. "\t" .. rec.shapes or rec.klass end
local function waits_for(parked) return parked and (parked == BY_KLASS and "klass" or "limit") or nil end

-- Return the limits in the field `limit` of a record, in their order. There is a tab between two.
local function limits_in(field)
  local keys = {}
  for key in string.gmatch(field or "", "[^\t]+") do keys[#keys + 1] = key end
  return keys
end

-- Return what the line of a parked job is named by: its limits, or the batch that is paused.
local function parked_under(rec)
  return string.find(rec.parked or "", "^\v") and rec.parked or rec.limit
end

-- Return the name by which an index knows the line of a parked job: the lane. Jobs with several limits have lines of
-- their own, named by the limits, too: the index of one limit would not find the jobs of a lane that another one stops.
local function line_named(rec)
  local lane = rec.lane or ""
  local under = rec.parked ~= BY_KLASS and parked_under(rec)
  return under and string.find(under, "\t", 1, true) and lane .. "\n" .. under or lane
end

-- Return the lane of a line by its name in an index; and if its jobs have several limits, the field with them.
local function parts_of(line)
  local lane, several = string.match(line, "^([^\n]*)\n(.+)$")
  return lane or line, several
end

-- Return the name of a line. `name` is that of the index: "limited:" and a limit, or "apart:" and a label.
local function line_in(name, queue, line)
  local lane, several = parts_of(line)
  return (several and "limited:" .. several or name) .. "\n" .. queue .. "\n" .. lane
end
