-- freed.lua: jobs that are stored as parked and have room again. Queries show them as waiting, because a lease or a
-- sweep would put just these back into their places.
--- @module
--- @include view
--- @include limits
--- @include parked
-- The budget of one script, over all queues: a job costs 1, a queue at least AT_LEAST. Beyond it jobs are shown as they
-- are stored, as parked.
local MOST, AT_LEAST = 1000, 16
local by_queue, left = {}, MOST

-- Return their jids in the order in which they go back; and the same as a set.
function freed.jids(queue)
  if not by_queue[queue] then
    local may_check = left > 0 and limits.next_check(queue) <= now
    local found = { list = may_check and limits.bring_back(queue, left) or {}, set = {} }
    if may_check then left = left - math.max(#found.list, AT_LEAST) end
    for _, jid in ipairs(found.list) do found.set[jid] = true end
    by_queue[queue] = found
  end
  return by_queue[queue].list, by_queue[queue].set
end

-- Return how many of so many parked jobs of a queue have room again, and the jids of the first of them.
function freed.count(queue, parked)
  if parked == 0 then return 0, {} end
  local n, heads = limits.could_start(queue)
  if n then return n, heads end
  heads = freed.jids(queue)
  return #heads, heads
end

-- Return a job as view() does, but waiting if it has room again.
function freed.view(jid)
  local row, queue, parked = view(jid), nil, nil
  if not row then return row end
  for i = 16, #row, 2 do
    local field, value = row[i], row[i + 1]
    if field == "queue" then queue = value elseif field == "parked" and waits_for(value) == "limit" then parked = i end
  end
  if parked and queue and select(2, freed.jids(queue))[jid] then row[parked + 1] = "0" end
  return row
end
