-- while_moving.lua: lets a script about leases run while the other jobs move to several shards, for callers that know
-- as many shards as there are until then.
--- @include layout
if layout.state == "moving" then
  local before, known = string.match(layout.shards, "^(%d+)>"), KEYS[2] and string.sub(KEYS[2], #P + 1)
  if before == (known or "1") then layout.state = "2" end
end
