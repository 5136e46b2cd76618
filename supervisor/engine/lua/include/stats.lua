-- stats.lua: the statistics of each queue for each UTC day. Collected while the script runs, stored once, by commit().
--- @include clock
--- @include config
--- @include plan
--- @include spread
--- @include bins
--- @include course
local spreads, tallies = {}, {}

local function day_of(ms) return math.floor(ms / 1000 / DAY) * DAY end

local function add_time(s, ms)
  if ms < 0 then ms = 0 end
  s[ms] = (s[ms] or 0) + 1
end

-- Add a wait or run time to today's.
local function spread(queue, kind, ms)
  local kinds = spreads[queue] or {}
  local s = kinds[kind] or {}
  spreads[queue], kinds[kind] = kinds, s
  add_time(s, ms)
end

-- Add to a count of a day: today's, or that of an earlier time.
local function tally(queue, what, by, when)
  local name = day_of(when or now) .. ":" .. queue
  local counts = tallies[name] or {}
  tallies[name], counts[what] = counts, (counts[what] or 0) + by
end

do -- a script has at most 200 locals outside of blocks
  -- A day that has begun is listed, so that retention finds it.
  local function opened(name) place(P .. "days", name, tonumber(string.match(name, "^%-?%d+"))) end

  -- Plan a call that may fail.
  local function call_last(...) messages[#messages + 1] = { ... } end

  local function add_counts(name, counts)
    local key = P .. "stats:" .. name
    for what, by in pairs(counts) do
      local had = tonumber(redis.call("HGET", key, what))
      if not had then opened(name) end
      if had or by > 0 then set_fields({ key, what, math.max(0, (had or 0) + by) }) end
    end
  end

  finish_with(function()
    if setting("stats-history") <= 0 then return end
    local days = setting("histogram-history")
    for queue, kinds in pairs(spreads) do
      for kind, s in pairs(kinds) do
        local name = day_of(now) .. ":" .. queue
        local fields, is_new = summed(name, kind, s)
        if is_new then opened(name) end
        set_fields(fields)
        if days > 0 then count_times(call_last, name, queue, days, kind, s) end
      end
    end
    local failures, deaths = 0, 0
    for name, counts in pairs(tallies) do
      add_counts(name, counts)
      failures, deaths = failures + (counts.failures or 0), deaths + (counts.deaths or 0)
      if counts.failures and days > 0 then
        raise_counters(call_last, name, string.match(name, ":(.*)$"), days, "INCRBY", "u32", 0, counts.failures)
      end
    end
    if failures + deaths > 0 then note_course("INCRBY", "u32", 32, failures, "INCRBY", "u32", 64, deaths) end
  end)
end
