#!lua flags=no-writes
-- layouts.lua — the layout of the namespace, and what a conversion would find there.
--
-- Called by: upgrade.look (supervisor/engine/commands/upgrade.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
--
-- Returns   array: the layout: "1", "2", "new", "back" (on the way to 1), "newer", or "lost" (2 without its mark); its
--           mark | ""; now in ms; an array of the workers that live or hold leases that run, each an array: name, when
--           it was seen in ms, number of its leases, when the last of the first 100 ends in ms | 0; and the numbers of
--           options, tracked jobs, tags, workers and queues. Of the workers the 1,000 seen last are read.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include clock
--- @include living
local is_first = layout.state == "1"
local function size(name) return redis.call("ZCARD", P .. name) end

if layout.state == "newer" then return { layout.state, layout[1], now, {}, 0, 0, 0, 0, 0 } end
local workers = is_first and "workers" or "workers-seen"
return {
  layout.state, layout[1] or "", now, living_workers(workers),
  redis.call("HLEN", P .. (is_first and "config" or "options")),
  size(is_first and "tracked" or "tracked-jobs"), size(is_first and "tags" or "tag-counts"), size(workers),
  size("queues"),
}
