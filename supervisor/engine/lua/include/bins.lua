-- bins.lua: how many waits and runs of a queue fell into each bin of time, for percentiles and histograms: by UTC days,
-- and by ten minutes for a day. A key is a string of counters of 32 bits: the failures, then the waits and the runs of
-- each bin. They are raised last and unread, which costs least: in a key of another type nothing is counted.
--- @include prefix
--- @include clock
local count_times, raise_counters

do -- a script has at most 200 locals outside of blocks
  -- Return the bin of a time. supervisor/engine/model/bins.py has their bounds.
  local function bin_of(ms)
    if ms < 4 then return math.floor(ms) end
    if ms < 1000 then -- four for each doubling
      local fraction, exponent = math.frexp(ms)
      return 4 * exponent - 12 + math.floor(8 * fraction)
    end
    local s = math.floor(ms / 1000)
    if s < 4 then return 32 + math.floor(ms / 250) end
    if s < 60 then return 44 + s end
    if s < 240 then return 100 + math.floor(s / 15) end
    if s < 3600 then return 112 + math.floor(s / 60) end
    if s < 86400 then return 168 + math.floor(s / 900) end
    if s < 259200 then return 240 + math.floor(s / 3600) end
    return 309 + math.min(30, math.floor(s / 86400))
  end

  -- Raise counters of `<day>:<queue>` and of the last ten minutes by what BITFIELD takes, at most 1,000 values, and let
  -- their keys expire, within a century at most: a longer TTL is none. `call` is redis.pcall, or answers nil if it
  -- calls that later.
  function raise_counters(call, name, queue, days, ...)
    local key, by = P .. "bins:" .. name, select(4, ...)
    local counts = call("BITFIELD", key, ...)
    if not counts or counts[1] == by then call("PEXPIRE", key, math.min(days + 1, 36500) * 86400000) end
    key = P .. "recent:" .. math.floor(now / 600000) * 600 .. ":" .. queue
    counts = call("BITFIELD", key, ...)
    if not counts or counts[1] == by then call("PEXPIRE", key, 25 * 3600000) end
  end

  -- Count a spread: the number of waits or runs by their length in ms.
  function count_times(call, name, queue, days, kind, s)
    local ms, only = next(s)
    local first = kind == "wait" and 32 or 64
    if not next(s, ms) then -- a job by itself, for which tables cost most
      return raise_counters(call, name, queue, days, "INCRBY", "u32", first + 64 * bin_of(ms), only)
    end
    local counts, raises = {}, {}
    for each, times in pairs(s) do
      local bit = first + 64 * bin_of(each)
      counts[bit] = (counts[bit] or 0) + times
    end
    for bit, times in pairs(counts) do
      local at = #raises
      raises[at + 1], raises[at + 2], raises[at + 3], raises[at + 4] = "INCRBY", "u32", bit, times
    end
    for at = 1, #raises, 1000 do
      raise_counters(call, name, queue, days, unpack(raises, at, math.min(at + 999, #raises)))
    end
  end
end
