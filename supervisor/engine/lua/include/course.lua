-- course.lua: what all queues together go through, by minutes for an hour, ten minutes for a day, and days for a month.
-- A key is a string of counters for one of these steps: how often sweeps have counted the waiting jobs, failures,
-- deaths, and workers that began, of 32 bits each; then, of 64 bits, the jobs of all these counts together, and the
-- last token. They are raised last and unread, like those of bins.lua.
--- @include clock
--- @include plan
local note_course

do -- a script has at most 200 locals outside of blocks
  local STEPS = { { 60, 65 * 60 }, { 600, 25 * 3600 }, { 86400, 32 * 86400 } } -- seconds of a step, and until it goes

  -- Plan what BITFIELD takes, for the steps that are under way.
  function note_course(...)
    for _, step in ipairs(STEPS) do
      local key = string.format("%scourse:%d:%.0f", P, step[1], math.floor(now / 1000 / step[1]) * step[1])
      messages[#messages + 1] = { "BITFIELD", key, ... }
      messages[#messages + 1] = { "PEXPIRE", key, step[2] * 1000 }
    end
  end
end
