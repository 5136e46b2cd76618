-- lines.lua: waiting jobs that lie apart under a name until something lets them back: a line for each queue and lane.
--- @module
--- @include fair
--- @include lanes
--- @include moves
--- @include parked
-- Return the lanes of a queue with jobs under a name, with their virtual times.
function lines.index(name, queue) return P .. name .. "\n" .. queue end

local function key_of(rec)
  local name = waits_for(rec.parked) == "klass" and "apart:" .. label_of(rec) or "limited:" .. parked_under(rec)
  return P .. name .. "\n" .. rec.queue .. "\n" .. (rec.lane or "")
end

local function member(rec) return member_of(rec.jid, rec.turn or rec.seq) end
function lines.put(rec) place(key_of(rec), member(rec), rec.turn and lanes.AHEAD or rec.priority or 0) end
function lines.remove(rec) place(key_of(rec), member(rec), false) end

function lines.is_empty(name, queue) return #first_members(lines.index(name, queue), 1) == 0 end

-- Let up to `most` jobs of a queue back into their places. Those of a paused lane stay, so that they take no room, but
-- with `gate.from_paused`. `gate.is_open()` returns whether one more job may go, and if not, when to ask again.
-- `gate.sends_on(line)` returns whether it has given the line to another index, `gate.take_out(rec)` takes a job out of
-- its line. Return how many went, and when to ask again; nil if none are left.
function lines.put_back(name, queue, most, gate)
  local index, n, passed, when = lines.index(name, queue), 0, 0, 2 ^ 53
  local function weight_of(line) return lanes.weight(queue, (parts_of(line))) end
  local function key_of_line(line) return P .. line_in(name, queue, line) end
  local function passes(line) return not gate.from_paused and lanes.is_paused(queue, (parts_of(line))) end
  local function visit(line, first)
    if not first then return "none" end
    local is_open, later = gate.is_open()
    if n + passed >= most or not is_open then
      when = is_open and 0 or later
      return "stop"
    end
    if gate.sends_on(line) then return "none" end
    local jid = string.sub(first, 14)
    local rec = read_job(jid)
    local lies_here = rec and rec.parked and not rec.state and rec.queue == queue and rec.seq
    if not lies_here or key_of(rec) ~= key_of_line(line) then
      moves.phantom(key_of_line(line), first, jid)
      passed = passed + 1
      return "again"
    end
    gate.take_out(rec)
    if rec.turn then moves.to_front(rec) else moves.line_up(rec) end
    n = n + 1
    return "turn"
  end
  local more = fair.serve(index, most, key_of_line, weight_of, visit, passes)
  if more or n >= most then when = 0 end
  if lines.is_empty(name, queue) then when = nil end
  return n, when
end
