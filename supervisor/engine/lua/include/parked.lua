-- parked.lua: what a parked job waits for, by the field `parked` of its record: "klass", a worker that knows its klass;
-- "limit", room under its limit; nil if the job is not parked.
local BY_KLASS, BY_LIMIT = "klass", 1
-- Return the name under which jobs lie apart together: their klass, and behind a tab the shapes of its data that their
-- data do not have, as workers have found.
local function label_of(rec) return rec.shapes and rec.klass .. "\t" .. rec.shapes or rec.klass end
local function waits_for(parked) return parked and (parked == BY_KLASS and "klass" or "limit") or nil end
