-- late.lua: jobs of a queue whose time has come, taken out of where they lay: into the line of the front (by turn) or
-- of the waiting ones (by priority). What finds no room in a lease must be laid down again.
--- @include death
--- @include recurrence
--- @module
local function add(line, rec, rank, at) line[#line + 1] = { rec = rec, rank = tonumber(rank) or 0, place = at } end

-- Jobs that have lost their worker: those that go ahead at once go to the front.
local function take_over(queue, most, found)
  local expired, looked = death.expired_jobs(queue, most)
  for i, rec in ipairs(expired) do
    if death.lose(rec) == "waiting" then add(found.front, rec, rec.turn, i) end
  end
  found.freed, found.more = #expired, looked == most
end

-- Jobs that were put off until now.
local function promote(queue, most, found)
  local key = queue_key(queue, "scheduled")
  local members = redis.call("ZRANGEBYSCORE", key, "-inf", now, "LIMIT", 0, most)
  for i, member in ipairs(members) do
    local jid = string.sub(member, 14)
    local rec = read_job(jid)
    if not (rec and rec.state == "scheduled" and rec.queue == queue and rec.seq) then
      moves.phantom(key, member, jid)
    else
      moves.leave(rec)
      add(rec.turn and found.front or found.waiting, rec, rec.turn or rec.priority, 1e6 + i)
    end
  end
  found.more = found.more or #members == most
end

local function spawn(queue, most, found, due_crons)
  local spawned, all = recurrence.spawn_due(queue, most, due_crons)
  for i, rec in ipairs(spawned) do add(found.waiting, rec, rec.priority, 2e6 + i) end
  found.more = found.more or not all
end

-- A table: `front` and `waiting`, lines of rec, rank and place; `freed`, how many had been running; `more`, whether
-- there is more to look at than `most` of each kind.
function late.collect(queue, most, expired, due, spawns, due_crons)
  local found = { front = {}, waiting = {}, freed = 0, more = false }
  if expired then take_over(queue, most, found) end
  if due then promote(queue, most, found) end
  if spawns then spawn(queue, most, found, due_crons) end
  return found
end

-- How lines are sorted.
function late.in_order(a, b)
  if a.rank ~= b.rank then return a.rank < b.rank end
  return a.place < b.place
end

-- The first `n` of a sorted set and one more, with the jobs of a line sorted in. Those that lie there have a `member`.
function late.merged(key, n, line)
  local found = redis.call("ZRANGE", key, 0, n, "WITHSCORES")
  for i = 1, #found, 2 do
    line[#line + 1] = { member = found[i], rank = tonumber(found[i + 1]), place = i }
  end
  table.sort(line, late.in_order)
  return line, #found > 2 * n
end
