-- parked.lua: what a job waits for that lies beside its queue, by the field `parked` of its record: "klass", a worker
-- that has its klass; "limit", room under its limit; nil if it lies in no such place.
local BY_KLASS, BY_LIMIT = "klass", 1
local function waits_for(parked) return parked and (parked == BY_KLASS and "klass" or "limit") or nil end
