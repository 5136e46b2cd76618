-- started.lua: whether a job has been started in this stage of its life, and has come back.
local function has_started(rec) return rec.failures or rec.deaths or rec.interruptions or rec.left or rec.begun end
