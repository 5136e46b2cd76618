-- judge_limit.lua: judges a limit: its settings, the holders of its slots, and the jobs parked under it. The index of
-- parked jobs may name a queue without any: a lease removes it.
--- @include judge_lane
local judge_limit = { lines = {}, told = {}, freed = {} }
local HELD, MOST_QUEUES, MONTH_MS = 2 ^ 53, 1000, 2592000000

-- Jobs are parked here, and the index by which leases find them does not name them.
function judge_limit.unlisted(name, index, queue)
  report("unlisted-limit", name, "has parked jobs, but is not in " .. index, "put it there")
  read_and_wake(queue)
end

-- Return the indexes by which leases find a line, each with the name that it must have there. A line of jobs with
-- several limits stands under one of them.
function judge_limit.indexes_of(line)
  local keys, name = limits_in(line.limit), line_named({ lane = line.lane, limit = line.limit })
  local function lines_under(key) return "limited:" .. key .. "\n" .. line.queue end
  local key = keys[1]
  for _, one in ipairs(keys) do
    if score_in(lines_under(one), name) then key = one end
  end
  return {
    { lines_under(key), name }, { "limited:" .. key, line.queue }, { "queue:" .. line.queue .. ":limits", key },
  }
end

-- As stored. The indexes get what the plan makes of it at the end.
function judge_limit.line(limit, queue, lane)
  local name = line_in("limited:" .. limit, queue, lane)
  if judge_limit.lines[name] then return end
  judge_limit.lines[name] = { limit = limit, queue = queue, lane = lane }
  if size_in(name) == 0 then return end
  local lines, queues, checks = unpack(judge_limit.indexes_of(judge_limit.lines[name]))
  if not score_in(unpack(lines)) then judge_limit.unlisted(name, lines[1], queue) end
  if judge_limit.told[lines[1]] then return end
  judge_limit.told[lines[1]] = true
  for _, index in ipairs({ queues, checks }) do
    if not score_in(unpack(index)) then judge_limit.unlisted(lines[1], index[1], queue) end
  end
end

function beside.limited(line)
  local limit, queue, lane = string.match(line, "^([^\n]+)\n([^\n]+)\n([^\n]*)$")
  if limit and #limits_in(limit) > 0 then judge_limit.line(limit, queue, lane) end
end

function beside.holders(limit, by)
  if by < 0 then judge_limit.freed[limit] = true end
end

-- Jobs that are parked under this limit may run: leases must examine them. What is not listed, the judge of its line
-- lists.
function judge_limit.mark_for_check(limit)
  local name = "limited:" .. limit
  local queues = is_there(name, "zset") and redis.call("ZRANGE", P .. name, 0, MOST_QUEUES - 1) or {}
  for _, queue in ipairs(queues) do
    local checks = "queue:" .. queue .. ":limits"
    if is_there(checks, "zset") and score_in(checks, limit) then
      place(P .. checks, limit, 0)
      read_and_wake(queue)
    end
  end
end

mended_with[#mended_with + 1] = function()
  for name, line in pairs(judge_limit.lines) do
    if size_after(name) > 0 then
      local lines, queues, checks = unpack(judge_limit.indexes_of(line))
      if not score_in(unpack(lines)) then place(P .. lines[1], lines[2], judge_lane.least_time(lines[1])) end
      if not score_in(unpack(queues)) then place(P .. queues[1], queues[2], now) end
      if not score_in(unpack(checks)) then place(P .. checks[1], checks[2], 0) end
    end
  end
  for limit in pairs(judge_limit.freed) do judge_limit.mark_for_check(limit) end
end

-- Judge the time at which a lease examines the jobs parked under a limit, or a batch. A free slot without a time means
-- that a job was put back into its place for it. That cannot be told from a forgotten limit, so a lease must examine
-- it.
function judge_limit.check_time(checks, limit, queue)
  local when = score_in(checks, limit)
  if when and when ~= HELD and when > now + MONTH_MS then
    report("wrong-score", checks, "has " .. limit .. " at " .. tostring(when) .. ", later than any limit lasts",
      "has a lease look at once")
    place(P .. checks, limit, 0)
    read_and_wake(queue)
  end
  if when ~= HELD then return end
  local batch = string.match(limit, "^\v(.*)$")
  local running = not batch and whole(value_in("limit:" .. limit, "running"))
  local is_paused = batch and value_in("batch:" .. batch, "paused")
  if not is_paused and (not running or size_in("holders:" .. limit) < running) then judge_limit.freed[limit] = true end
end

-- The valid settings. A rate is two numbers, and one without the other is invalid.
local BOUNDS = {
  running = { least = 0, most = EXACT },
  starts = { least = 1, most = 10000, other = "per" },
  per = { least = 1, most = MONTH_MS, other = "starts" },
}

function judge_limit.bound(name, field, limit)
  local value, bounds = value_in(name, field), BOUNDS[field]
  local n, other = whole(value), bounds.other
  if not value or n and n >= bounds.least and n <= bounds.most and (not other or value_in(name, other)) then return end
  report("foreign-value", name, "has the " .. field .. " " .. value .. ", which cannot be", "unset it")
  set_value(name, field, nil)
  if other then set_value(name, other, nil) end
  judge_limit.freed[limit] = true
end

function judge_limit.settings(name, limit)
  for field in pairs(BOUNDS) do judge_limit.bound(name, field, limit) end
  if value_in(name, "by") and not value_in(name, "running") and not value_in(name, "starts") then
    report("foreign-value", name, "says who has set it, but nothing is set", "unset it")
    set_value(name, "by", nil)
  end
  if score_in("limits", limit) or not is_there(name, "hash") then return end
  report("unlisted-limit", name, "is set, but is not among the limits", "listed it")
  place(P .. "limits", limit, now)
end

-- The last starts of a limit with a rate, as times.
function judge_limit.starts(name)
  for _, time in ipairs(redis.call("LRANGE", P .. name, 0, 9999)) do
    if not whole(time) then
      report("foreign-value", name, "has " .. time .. " among its times, which is none", "dropped them")
      drop(P .. name)
      return
    end
  end
end
