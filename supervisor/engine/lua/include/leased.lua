-- leased.lua: what a lease returns, and how much payload a reply may have.
local ANSWER_BYTES = 1048576
local UNSIZED_BYTES = 1024 -- counted for a record without a size
local LONGEST_WAIT = 30000 -- ms that a worker waits for a wake-up key before it leases by itself
local LARGE_BYTES, MANY_BYTES = 2048, 32768

-- Return the payloads of these sizes, in their order, as `read(indexes)` returns some. Large ones are not read if they
-- are many, because Redis hashes each byte that a script gets: the size stands for the payload, and the caller reads it
-- in a second round trip.
local function payloads_of(sizes, read)
  local together, near, payloads = 0, {}, {}
  for _, size in ipairs(sizes) do
    if size > LARGE_BYTES then together = together + size end
  end
  for i, size in ipairs(sizes) do
    if together > MANY_BYTES and size > LARGE_BYTES then payloads[i] = size else near[#near + 1] = i end
  end
  for at, payload in ipairs(#near > 0 and read(near) or {}) do payloads[near[at]] = payload end
  return payloads
end
