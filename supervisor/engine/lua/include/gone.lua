-- gone.lua: how a worker is told that the job of its lease is gone.
--- @include prefix
-- Return "gone", and behind ":" who cancelled the job, or nothing if that is unknown. A job that was not cancelled has
-- no ":". A foreign type must not keep other leases from being renewed.
local function gone_word(jid)
  if type(redis.pcall("ZSCORE", P .. "cancelled", jid)) ~= "string" then return "gone" end
  local by = redis.pcall("HGET", P .. "cancelled-by", jid)
  return "gone:" .. (type(by) == "string" and by or "")
end
