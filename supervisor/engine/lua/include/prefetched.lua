-- prefetched.lua: the dense records that this script has read ahead, by jid; false: MGET answered nil, because the
-- record is full or there is none.
local prefetched = {}
