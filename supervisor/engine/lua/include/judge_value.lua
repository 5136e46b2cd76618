-- judge_value.lua: judges single values of the configuration, the statistics, lanes and workers. Scripts calculate with
-- them unchecked, and a "nan" would spread. An invalid value is unset, so that its default counts.
--- @include judge
--- @include config
local judge_value = {} -- by the kind of their hash
local OF_QUEUES, OF_THE_NAMESPACE = { klass = true }, {}
for option in pairs(OF_A_QUEUE) do OF_QUEUES[option] = true end
for option in pairs(OF_ALL) do OF_THE_NAMESPACE[option] = true end

local allowed = {}
function allowed.count(text) return (whole(text) or -1) >= 0 end
function allowed.time(text) return (number(text) or -1) >= 0 end
function allowed.span(text) return (number(text) or 0) > 0 end
function allowed.flag(text) return text == "0" or text == "1" end
function allowed.name(text) return #text >= 1 and #text <= 64 and not string.find(text, "%c") end

local KINDS = {
  heartbeat = "span", ["max-worker-age"] = "span", klass = "name", paused = "flag", ["max-deaths"] = "count",
  ["max-concurrency"] = "count", ["jobs-history-count"] = "count", ["failed-history-count"] = "count",
  ["stats-history"] = "count", ["histogram-history"] = "count",
}

-- Return the option of `<option>` or `<option>-<queue>`; nothing for one of another program, or of a later version.
local function option_of(field)
  if OF_QUEUES[field] or OF_THE_NAMESPACE[field] then return field end
  for at = #field - 1, 1, -1 do
    local option = string.sub(field, 1, at)
    if string.sub(field, at + 1, at + 1) == "-" and OF_QUEUES[option] then return option end
  end
end

local function unset(name, field, value)
  report("foreign-value", name, "has " .. field .. " " .. value .. ", which cannot be", "unset it")
  set_value(name, field, nil)
end

function judge_value.options(name, field, value)
  local option = option_of(field)
  if option and not allowed[KINDS[option] or "time"](value) then unset(name, field, value) end
end

-- The three figures of a spread are useless without each other.
judge_value["stats:"] = function(name, field, value)
  if number(value) then return end
  unset(name, field, value)
  local kind = string.match(field, "^(%l+)%.")
  for _, other in ipairs(kind and { ".n", ".mean", ".m2" } or {}) do
    if value_in(name, kind .. other) then set_value(name, kind .. other, nil) end
  end
end

judge_value["histogram:"] = function(name, field, value)
  if not number(value) then unset(name, field, value) end
end

judge_value["lanes:"] = function(name, field, value, queue)
  local setting, lane = string.match(field, "^(%l+):(.+)$")
  if setting == "paused" then return judge_lane.line(queue, lane) end
  local weight = setting == "weight" and whole(value)
  if not weight or weight < 1 or weight > 1000 then unset(name, field, value) end
end

function judge_value.announced(name, queue, value)
  if not whole(value) then unset(name, queue, value) end
end

judge_value["worker:"] = function(name, field, value)
  local is_number = field == "number" or field == "since" or field == "settled" or field == "wish"
  if is_number and not whole(value) then unset(name, field, value) end
end

-- A key is held by a job that has a claim to it.
judge_value["unique:"] = function(name, key, jid, queue)
  if judge_claim.has(jid, queue, key) then return end
  judge.job(jid)
  if not judge_claim.has(jid, queue, key) and value_in(name, key) == jid then judge_claim.evict(name, key, jid) end
end
