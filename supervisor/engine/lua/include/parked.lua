-- parked.lua: what a parked job waits for, by the field `parked` of its record: "klass", a worker that knows its klass;
-- "limit", room under its limit; nil if the job is not parked.
local BY_KLASS, BY_LIMIT = "klass", 1
local function waits_for(parked) return parked and (parked == BY_KLASS and "klass" or "limit") or nil end
