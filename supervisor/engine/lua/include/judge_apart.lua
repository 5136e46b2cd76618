-- judge_apart.lua: judges the lines of jobs that lie apart by their klass, and the index by which leases find them.
--- @include judge_lane
local judge_apart = { lines = {} }

-- As stored. The indexes get what the plan makes of it at the end.
function judge_apart.line(klass, queue, lane)
  local name, index = line_in("apart:" .. klass, queue, lane), "apart:" .. klass .. "\n" .. queue
  if judge_apart.lines[name] then return end
  judge_apart.lines[name] = { klass = klass, queue = queue, lane = lane, index = index }
  if size_in(name) == 0 then return end
  for set, member in pairs({ [index] = lane, ["queue:" .. queue .. ":klasses"] = klass }) do
    if not score_in(set, member) then
      report("unlisted-limit", name, "has jobs that lie apart, but is not in " .. set, "put it there")
      read_and_wake(queue)
    end
  end
end

function beside.apart(line)
  local klass, queue, lane = string.match(line, "^([^\n]+)\n([^\n]+)\n([^\n]*)$")
  if klass then judge_apart.line(klass, queue, lane) end
end

mended_with[#mended_with + 1] = function()
  for name, line in pairs(judge_apart.lines) do
    if size_after(name) > 0 then
      local checks = "queue:" .. line.queue .. ":klasses"
      if not score_in(line.index, line.lane) then
        place(P .. line.index, line.lane, judge_lane.least_time(line.index))
      end
      if not score_in(checks, line.klass) then place(P .. checks, line.klass, 0) end
    end
  end
end

-- Judge the time at which a lease checks whether a live worker knows a klass.
function judge_apart.check_time(checks, klass, queue)
  local when = score_in(checks, klass)
  if not when or when <= now + DAY_MS then return end
  report("wrong-score", checks, "has " .. klass .. " at " .. tostring(when) .. ", later than anybody looks",
    "has a lease look at once")
  place(P .. checks, klass, 0)
  read_and_wake(queue)
end
