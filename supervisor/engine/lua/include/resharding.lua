-- resharding.lua: lets the present pass of `leasehold reshard` write, in each of the shards, and no earlier one.
--- @include layout
if layout.state == "moving" or layout.state == "sharded" then layout.state = "2" end
--- @include this_layout
if redis.call("GET", P .. "resharding") ~= ARGV[2] then
  error({ err = "REFUSED namespace " .. string.sub(P, 2, -3) .. " is not being resharded by this command any more:"
    .. " another one has begun, or has ended" })
end
