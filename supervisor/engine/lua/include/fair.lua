-- fair.lua: turns among lines that share something. Each line has its virtual time in a sorted set, the index. The line
-- with the least time is next, and each turn adds 1/weight. A new line begins at the least time, so none saves up
-- turns. An empty line stays until its turn comes, so leaving and coming back gains nothing.
--- @module
--- @include plan
local MOST_EMPTY = 500 -- lines removed by one call
local least_times = {}

-- Add a line to the index, unless it is there.
function fair.join(index, line)
  if score_of(index, line) then return end
  least_times[index] = least_times[index] or head_of(index, 1)[2] or 0
  place(index, line, least_times[index])
end

local function is_before(a, b)
  if a.time ~= b.time then return a.time < b.time end
  if a.first_time == b.first_time then return a.rank < b.rank end -- Redis' order
  return lies_before(a.line, b.line)
end

-- The heap's first element has grown or was replaced: sift it down.
local function sink(heap)
  local i, n = 1, #heap
  while true do
    local least, left = i, 2 * i
    if left <= n and is_before(heap[left], heap[least]) then least = left end
    if left < n and is_before(heap[left + 1], heap[least]) then least = left + 1 end
    if least == i then return end
    heap[i], heap[least] = heap[least], heap[i]
    i = least
  end
end

local function rise(heap, i)
  while i > 1 do
    local above = math.floor(i / 2)
    if not is_before(heap[i], heap[above]) then return end
    heap[i], heap[above] = heap[above], heap[i]
    i = above
  end
end

-- Return a function that returns the next member of a line, each once, or nothing. It reads in chunks such that few
-- calls get `wanted` members of all lines of the index.
function fair.reader(index, key_of, wanted)
  local lines = {}
  local chunk = math.min(64, math.ceil(wanted / math.max(1, redis.call("ZCARD", index))) + 1)
  return function(name)
    local line = lines[name]
    if not line or line.at == #line then
      line = first_members(key_of(name), chunk) -- without those taken from it
      line.at, lines[name] = 0, line
    end
    line.at = line.at + 1
    return line[line.at]
  end
end

-- Give up to `wanted` turns. `visit(line)` returns "turn" (it got one), "none" (it is empty and leaves the index),
-- "pass" (no turn this time), "again" (no turn, but it is still next) or "stop". Return whether another call is needed,
-- because many lines were empty, and the lines that were visited and stay.
function fair.serve(index, wanted, weight_of, visit)
  local heap, seen, n_seen, all, empty = {}, {}, 0, false, 0
  --   All lines that may be next must be known: as many as there are turns left.
  local function read_more(n)
    local asked = n_seen + n
    local found = head_of(index, asked)
    all = #found < 2 * asked
    for i = 1, #found, 2 do
      if not seen[found[i]] then
        seen[found[i]], n_seen = true, n_seen + 1
        local time = tonumber(found[i + 1])
        heap[#heap + 1] = { line = found[i], time = time, first_time = time, rank = n_seen }
        rise(heap, #heap)
      end
    end
  end
  read_more(wanted + 16)
  while wanted > 0 do
    if #heap < wanted and not all then read_more(wanted - #heap + 16) end
    local next_one = heap[1]
    if not next_one then return false, heap end
    local verdict = visit(next_one.line)
    if verdict == "stop" then return false, heap end
    if verdict == "turn" then
      next_one.time, wanted = next_one.time + 1 / weight_of(next_one.line), wanted - 1
      place(index, next_one.line, next_one.time)
      sink(heap)
    elseif verdict == "none" or verdict == "pass" then
      heap[1] = heap[#heap]
      heap[#heap] = nil
      sink(heap)
      if verdict == "none" then
        place(index, next_one.line, false)
        empty = empty + 1
        if empty == MOST_EMPTY then return true, heap end
      end
    end
  end
  return false, heap
end
