-- prefetched.lua: the records that a quick path has read, by key, as HGETALL returns them. The rest does not read them
-- again.
local prefetched = {}
