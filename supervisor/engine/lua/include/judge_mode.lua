-- judge_mode.lua: judges what is left of the modes of unique jobs.
--- @include judge
do -- a script has at most 200 locals outside of blocks
  local LONGEST = 604800000 -- ms, of a throttle

  function judge.throttled(name)
    if redis.call("LLEN", P .. name) == 1 and string.find(redis.call("LINDEX", P .. name, 0), "^%d+ .+$") then
      if redis.call("PTTL", P .. name) ~= -1 then return end
      report("no-expiry", name, "would stay for ever", "gave it an end")
      expire(P .. name, LONGEST)
    else
      report("foreign-value", name, "does not name one job and a time", "deleted it")
      drop(P .. name)
    end
  end
end
