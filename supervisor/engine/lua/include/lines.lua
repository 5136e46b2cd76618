-- lines.lua: waiting jobs that lie apart under a name until something lets them back: a line for each queue and lane.
--- @module
--- @include fair
--- @include lanes
--- @include moves
--- @include parked
local function member(rec) return member_of(rec.jid, rec.turn or rec.seq) end
local function line_of(name, queue, lane) return lines.index(name, queue) .. "\n" .. lane end

-- Return the lanes of a queue with jobs under a name, with their virtual times.
function lines.index(name, queue) return P .. name .. "\n" .. queue end

-- Return the name under which a job lies apart.
function lines.name_of(rec)
  return waits_for(rec.parked) == "klass" and "apart:" .. label_of(rec) or "limited:" .. full_limit_of(rec)
end

function lines.add(rec)
  local name = lines.name_of(rec)
  place(line_of(name, rec.queue, rec.lane or ""), member(rec), rec.turn and lanes.AHEAD or rec.priority or 0)
  fair.join(lines.index(name, rec.queue), rec.lane or "")
end

function lines.remove(rec) place(line_of(lines.name_of(rec), rec.queue, rec.lane or ""), member(rec), false) end

function lines.is_empty(name, queue) return #first_members(lines.index(name, queue), 1) == 0 end

-- Let up to `most` jobs of a queue back into their places. Those of a paused lane stay, so that they take no room, but
-- with `from_paused`. `may_go(n)` returns whether a job may go after n others, and if not, when to ask again.
-- `take_out(rec)` takes one out of its line. Return how many, and when to ask again; nil if none are left.
function lines.put_back(name, queue, most, may_go, take_out, from_paused)
  local index, n, passed, when = lines.index(name, queue), 0, 0, 2 ^ 53
  local function weight_of(lane) return lanes.weight(queue, lane) end
  local function key_of(lane) return line_of(name, queue, lane) end
  local function visit(lane, first)
    if not first then return "none" end
    if not from_paused and lanes.is_paused(queue, lane) then return "pass" end
    local may, later = may_go(n)
    if n + passed >= most or not may then
      when = may and 0 or later
      return "stop"
    end
    local jid = string.sub(first, 14)
    local rec = read_job(jid)
    local lies_here = rec and rec.parked and not rec.state and rec.queue == queue and rec.seq
    if not lies_here or lines.name_of(rec) ~= name then
      moves.phantom(line_of(name, queue, lane), first, jid)
      passed = passed + 1
      return "again"
    end
    take_out(rec)
    if rec.turn then moves.to_front(rec) else moves.line_up(rec) end
    n = n + 1
    return "turn"
  end
  local more = fair.serve(index, most, key_of, weight_of, visit)
  if more or n >= most then when = 0 end
  if lines.is_empty(name, queue) then when = nil end
  return n, when
end
