-- fair.lua: turns among lines that share something. Each line has its virtual time in a sorted set, the index. The line
-- with the least time is next, and each turn adds 1/weight. A new line begins at the least time, so none saves up
-- turns. An empty line stays until its turn comes, so leaving and coming back gains nothing.
--- @module
--- @include plan
--- @include stored
local MOST_EMPTY = 500 -- lines removed by one call
local A_TURN = 16 -- so many jobs that go away without a turn cost their line as much as a turn: others come meanwhile
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

-- Return a function that reads the first members of some lines, and the dense records of their jobs, and one that
-- returns the next member of a line, each once, or nothing. They read in chunks such that few calls get `wanted`
-- members of all lines of the index.
local function reader(index, key_of, wanted)
  local lines = {}
  local chunk = math.min(64, math.ceil(wanted / math.max(1, redis.call("ZCARD", index))) + 1)
  local function read(names)
    local jids = {}
    for _, name in ipairs(names) do
      local line = first_members(key_of(name), chunk) -- without those taken from it
      for _, member in ipairs(line) do jids[#jids + 1] = string.sub(member, 14) end
      line.at, lines[name] = 0, line
    end
    read_ahead(jids)
  end
  local function next_of(name)
    local line = lines[name]
    if not line or line.at == #line then
      read({ name })
      line = lines[name]
    end
    line.at = line.at + 1
    return line[line.at]
  end
  return read, next_of
end

-- Give up to `wanted` turns. `key_of(line)` is the key of a line, whose members are numbers and jids. `visit(line,
-- member)` gets the next member of a line, nil if there is none. It returns "turn" (the line got one), "gone" (a job
-- has left it without one), "none" (it is empty and leaves the index), "pass" (no turn this time), "again" (no turn,
-- but it is still next) or "stop". Lines for which `passes(line)`, if given, is true get no turn. Return whether
-- another call is needed, because many lines were empty, and up to 17 of the lines that stay.
function fair.serve(index, wanted, key_of, weight_of, visit, passes)
  local read_members, next_of = reader(index, key_of, wanted)
  --   Lines that have had no turn lie in `fresh` from `at` on, in Redis' order; those that have had one in the heap.
  local fresh, n_fresh, at, heap, seen, n_seen, all, empty = {}, 0, 1, {}, {}, 0, false, 0
  --   The index is read from its start each time, so each time twice as far.
  local function read_more(n)
    local asked, names = n_seen + math.max(n, n_seen), {}
    local found = head_of(index, asked)
    all = #found < 2 * asked
    for i = 1, #found, 2 do
      local name, time = found[i], tonumber(found[i + 1])
      if not seen[name] then
        seen[name], n_seen = true, n_seen + 1
        if not (passes and passes(name)) then
          n_fresh = n_fresh + 1
          fresh[n_fresh] = { line = name, time = time, first_time = time, rank = n_fresh }
          if #names < wanted then names[#names + 1] = name end
        end
      end
    end
    read_members(names)
  end
  local function staying()
    local some = { unpack(heap, 1, 17) }
    for i = at, math.min(n_fresh, at + 16 - #some) do some[#some + 1] = fresh[i] end
    return some
  end
  read_more(wanted + 16)
  while wanted > 0 do
    while at > n_fresh and not all do read_more(wanted + 16) end
    local next_one, first_fresh = heap[1], fresh[at]
    local is_fresh = first_fresh and not (next_one and is_before(next_one, first_fresh))
    if is_fresh then next_one = first_fresh end
    if not next_one then return false, {} end
    local verdict = visit(next_one.line, next_of(next_one.line))
    if verdict == "stop" then return false, staying() end
    local part = verdict == "turn" and 1 or verdict == "gone" and A_TURN
    if part then
      next_one.time = next_one.time + 1 / (weight_of(next_one.line) * part)
      if verdict == "turn" then wanted = wanted - 1 end
      place(index, next_one.line, next_one.time)
    elseif verdict == "none" then
      place(index, next_one.line, false)
      empty = empty + 1
    end
    if verdict ~= "again" and is_fresh then at = at + 1 end
    if part and is_fresh then
      heap[#heap + 1] = next_one
      rise(heap, #heap)
    elseif part then
      sink(heap)
    elseif verdict ~= "again" and not is_fresh then
      heap[1] = heap[#heap]
      heap[#heap] = nil
      sink(heap)
    end
    if empty == MOST_EMPTY then return true, staying() end
  end
  return false, staying()
end
