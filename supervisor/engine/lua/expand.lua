#!lua flags=allow-oom
-- expand.lua — store jobs as layout 1 stores them, on the way back to it.
--
-- Called by: upgrade.expand (supervisor/engine/commands/upgrade.py)
-- Holds:     INV-1 each job stays in its place; called twice it changes nothing
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2..] jids; some may have gone
--
-- Returns   how many of them are there.
-- Errors    LAYOUT or REFUSED unless the namespace is on its way back. WRONGTYPE for a foreign key of ours. Nothing has
--           changed then.

--- @include clock
--- @include layout
if layout.state == "2" then error({ err = "REFUSED the namespace is not on its way back any more" }) end
if layout.state == "back" then layout.state = "2" end
--- @include this_layout
--- @include record
--- @include results
--- @include limits
--- @include moves
--- @include parked
local SIZED_IN_1 = 1024 -- bytes; the size of a smaller payload is not stored
local jids, found = { unpack(ARGV, 2) }, 0

-- Layout 1 parks jobs under one limit.
local function is_parked_as_1_cannot(rec)
  if waits_for(rec.parked) ~= "limit" then return false end
  local under = parked_under(rec)
  return under ~= rec.limit or string.find(under, "\t", 1, true)
end

read_ahead(jids)
for _, jid in ipairs(jids) do
  local rec = read_job(jid)
  if rec then
    found = found + 1
    results.set_parents(rec, {}) -- layout 1 does not know them
    if is_parked_as_1_cannot(rec) then
      limits.clear(rec)
      if rec.turn then moves.to_front(rec) else moves.line_up(rec) end
    end
    drop(P .. "readers:" .. jid)
    rec.special = is_special(rec) and 1 or nil
    if (tonumber(rec.size) or 0) <= SIZED_IN_1 then rec.size = nil end
  end
end

-- All records of layout 1 are full, and the scores of its leases are their tokens.
local is_defined = dense.can_hold -- the first use of the module defines its functions, also this one
function dense.can_hold() return is_defined == nil end
finish_with(function()
  for _, rec in pairs(records) do
    local token, worker = owner_of(rec or {})
    if token and rec.state == "running" then place(P .. "held:" .. worker, rec.jid, token) end
  end
end)
commit()
return found
