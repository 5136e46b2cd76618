#!lua flags=no-writes
-- layouts.lua — the layout of the namespace, and what a conversion would find there.
--
-- Called by: upgrade.look (supervisor/engine/commands/upgrade.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   number of workers to skip; -1 = all
-- ARGV[3]   number of queues to skip; -1 = all
--
-- Returns   array: the layout: "1", "2", "new", "back" (on the way to 1), "newer", "lost" (2 without its mark),
--           "sharded" (2 in several shards) or "moving" (on the way to these); its mark | ""; now in ms; an array of
--           the workers that live or hold leases that run, each an array: name, when it was seen in ms, number of its
--           leases, when the last of the first 100 ends in ms | 0; the numbers of options, tracked jobs, tags, workers
--           and queues; both numbers for the next call; the numbers of jobs apart, of jobs that wait for a signal
--           without a time limit, and of batches that have not ended.
--           Of the workers seen lately the first call returns up to 1,000. One call looks at 1,000 others, at about
--           2,000 leases, and at 10,000 queues.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include clock
--- @include living
local MOST_QUEUES = 10000
local NEVER = 2 ^ 53 -- when a wait without a time limit is over
local skipped, skipped_queues = tonumber(ARGV[2]), tonumber(ARGV[3])
local is_first = layout.state == "1"
local function size(name) return redis.call("ZCARD", P .. name) end

-- Return how many jobs of some queues lie apart, how many wait for a signal, and how many queues the next call skips.
local function count_unknown_to_1()
  if skipped_queues < 0 or layout.state ~= "2" then return 0, 0, -1 end
  local names = redis.call("ZRANGE", P .. "queues", skipped_queues, skipped_queues + MOST_QUEUES - 1)
  local apart, waits = 0, 0
  for _, queue in ipairs(names) do
    apart = apart + redis.call("ZCARD", queue_key(queue, "apart"))
    waits = waits + redis.call("ZCOUNT", queue_key(queue, "scheduled"), NEVER, "+inf")
  end
  return apart, waits, #names == MOST_QUEUES and skipped_queues + MOST_QUEUES or -1
end

if layout.state == "newer" or layout.state == "sharded" or layout.state == "moving" then
  return { layout.state, layout[1], now, {}, 0, 0, 0, 0, 0, -1, -1, 0, 0, 0 }
end
local workers, living, next_worker = is_first and "workers" or "workers-seen", {}, -1
if skipped == 0 then living = workers_since(workers, now - LIVES) end
if skipped >= 0 then
  local holders
  holders, next_worker = holders_before(workers, now - LIVES, skipped)
  for _, worker in ipairs(holders) do living[#living + 1] = worker end
end
local n_apart, n_waits, next_queue = count_unknown_to_1()
return {
  layout.state, layout[1] or "", now, living,
  redis.call("HLEN", P .. (is_first and "config" or "options")),
  size(is_first and "tracked" or "tracked-jobs"), size(is_first and "tags" or "tag-counts"), size(workers),
  size("queues"), next_worker, next_queue, n_apart, n_waits, size("batches"),
}
