#!lua flags=no-writes
-- depart.lua — read things of the first shard that are to move to others.
--
-- Called by: resharding.depart (supervisor/engine/commands/resharding.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the first shard
-- ARGV[1..] kinds with their names: "job:", "recur:", "limit:", "throttled:"; "memory:" and a jid without a job;
--           "home:" and the jid of a job that does not move
--
-- Returns   an array for each of the first of them, as far as one call reads: why it stays ("" = it can move, "gone" =
--           there is none), its limits, its unique key, its seal, the name of a large string of it and its size, and
--           its parts (include/parcel.lua).
-- Errors    LAYOUT in a namespace of another layout. WRONGTYPE for a foreign key of ours.

--- @include layout
if layout.state == "moving" or layout.state == "sharded" then layout.state = "2" end
--- @include this_layout
--- @include parcel
local MOST_BYTES, MOST_PARTS = 1048576, 10000
local names = { unpack(ARGV, 1) }
local rows, bytes, n_parts = {}, 0, 0
parcel.read_ahead(names)
for i, name in ipairs(names) do
  if bytes >= MOST_BYTES or n_parts >= MOST_PARTS then break end
  local it = parcel.of(name)
  local row = { it.why, it.limit, it.unique, it.seal, it.large, it.size }
  for _, parts in ipairs({ it.parts, it.aside }) do
    for _, text in ipairs(parts) do
      row[#row + 1] = text
      bytes = bytes + #tostring(text)
    end
  end
  rows[i], n_parts = row, n_parts + #row
end
return rows
