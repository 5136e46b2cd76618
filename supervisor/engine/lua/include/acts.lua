-- acts.lua: the record of who did what to queues, limits, supervisors and jobs, the newest act last.
--- @module
--- @include clock
--- @include plan
local KEY, MOST, AGE_MS, MOST_NAMES, VALUE_BYTES, A_MINUTE_MS = P .. "audit", 10000, 90 * 86400000, 20, 256, 60000
-- Applications act on their own jobs all day, and would fill the record. A person's acts have a name.
local BY_NAME_ONLY = { job = true, recurrence = true }

local function line_of(text) return (string.gsub(string.sub(text, 1, VALUE_BYTES), "[\r\n]", " ")) end

-- Return when the last act was, its number and its names, if it was the same one within a minute: a call in steps is
-- one act.
local function same_as_last(what, of, names)
  local last = redis.call("LINDEX", KEY, -1) or ""
  local when, number, head, rest = string.match(last, "^(%d+)\n(%d+)\n([^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*)(.*)$")
  if head ~= what or math.abs(now - tonumber(when)) >= A_MINUTE_MS then return nil end
  if of ~= "job" and rest ~= names then return nil end
  return last, tonumber(number), rest
end

-- Return how many of the kept acts are young enough. Ten are looked at, which is more than come with a call.
local function kept()
  local old = 0
  for _, act in ipairs(redis.call("LRANGE", KEY, 0, 9)) do
    if tonumber(string.match(act, "^%d+") or 0) >= now - AGE_MS then break end
    old = old + 1
  end
  return math.min(MOST, redis.call("LLEN", KEY) + 1 - old)
end

-- Record that `by` did `act` to things of the kind `of`: `number` of them, if those are jobs of a queue or a batch.
-- `queue` and `value` are "" where they tell nothing.
function acts.note(by, act, of, named, queue, value, number)
  if by == "" and BY_NAME_ONLY[of] then return end
  local what = table.concat({ by, act, of, queue or "", line_of(value or "") }, "\n")
  local all, first = number or #named, {}
  for i = 1, math.min(#named, MOST_NAMES) do first[i] = named[i] end
  local names = #first > 0 and "\n" .. table.concat(first, "\n") or ""
  local last, before, its_names = same_as_last(what, of, names)
  local most = kept()
  if last then
    strike(KEY, last)
    all = all + before
    if of == "job" then
      local _, has = string.gsub(its_names, "\n", "")
      names = its_names .. (#first > 0 and has < MOST_NAMES
        and "\n" .. table.concat(first, "\n", 1, math.min(#first, MOST_NAMES - has)) or "")
    end
  end
  push(KEY, digits(now) .. "\n" .. all .. "\n" .. what .. names, most, AGE_MS)
end
