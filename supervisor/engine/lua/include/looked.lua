-- looked.lua: the records that a quick way has read, by key, as HGETALL gives them: the rest need not read them again.
local looked = {}
