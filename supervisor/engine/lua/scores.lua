#!lua flags=allow-oom
-- scores.lua — give leases that layout 1 has left the scores that they have in layout 2, before the conversion.
--
-- Called by: upgrade.score_leases (supervisor/engine/commands/upgrade.py)
-- Holds:     INV-3 the score of a lease in `held:` says that its record is full; layout 1 does not read it
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   number of workers to skip
-- ARGV[3]   number of leases of the next worker to skip
--
-- Returns   array: both numbers for the next call; the first is -1 after the last worker. One call looks at 100 workers
--           and about 1,000 leases.
-- Errors    LAYOUT if the namespace is neither of layout 1 nor on the way back to it. WRONGTYPE for a foreign key of
--           ours. Nothing has changed then.

--- @include clock
--- @include layout
local was = layout.state
if was == "1" or was == "back" then layout.state = "2" elseif was == "2" then layout.state = "back" end
--- @include this_layout
--- @include plan
local MOST_WORKERS, MOST_LEASES = 100, 1000
local skipped, first, read = tonumber(ARGV[2]), tonumber(ARGV[3]), 0

-- Raise the scores of a worker's leases of full records. Return how many it holds from the first one on.
local function score(worker)
  local key = P .. "held:" .. worker
  local held, keys = redis.call("ZRANGE", key, first, first + MOST_LEASES - 1, "WITHSCORES"), {}
  for i = 1, #held, 2 do keys[#keys + 1] = job_key(held[i]) end
  for i, text in ipairs(#keys > 0 and redis.call("MGET", unpack(keys)) or {}) do
    local jid, token = held[2 * i - 1], held[2 * i]
    if not text and string.find(token, "^%d+$") then place(key, jid, token .. ".5") end
  end
  return #keys
end

local index = P .. (was == "1" and "workers" or "workers-seen")
local workers = redis.call("ZRANGE", index, skipped, skipped + MOST_WORKERS - 1)
local next_worker, next_lease = skipped, 0
for _, worker in ipairs(workers) do
  if read >= MOST_LEASES then break end
  local n = score(worker)
  read = read + n
  if n == MOST_LEASES then
    next_lease = first + n
    break
  end
  next_worker, first = next_worker + 1, 0
end
commit()
local is_last = next_worker == skipped + #workers and #workers < MOST_WORKERS
return { is_last and -1 or next_worker, next_lease }
