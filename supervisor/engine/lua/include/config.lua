-- config.lua: the configuration. An option of a queue is `<option>-<queue>`, else `<option>`, else the default; the
-- other options hold for the namespace. Values are seconds, days or counts. All options of a kind are read at once.
--- @include layout
--- @include keys
local OF_A_QUEUE = {
  heartbeat = 30, grace = 5, ["max-deaths"] = 3, ["unknown-for"] = 3600, ["max-concurrency"] = 0, paused = 0,
}
local OF_ALL = {
  ["max-worker-age"] = 86400, ["jobs-history"] = 604800, ["jobs-history-count"] = 50000, ["failed-history"] = 0,
  ["failed-history-count"] = 50000, ["stats-history"] = 30, ["histogram-history"] = 31,
  acknowledge = 0, ["acknowledge-timeout"] = 1,
}
local settings = {}

local function read_settings(defaults, queue)
  if not layout.has_options then return defaults end
  local options, names, found = {}, {}, {}
  for option in pairs(defaults) do
    options[#options + 1] = option
    names[#names + 1] = option
    if queue then names[#names + 1] = option .. "-" .. queue end
  end
  local values, width = redis.call("HMGET", P .. "options", unpack(names)), queue and 2 or 1
  for i, option in ipairs(options) do
    local at = (i - 1) * width + 1
    found[option] = queue and tonumber(values[at + 1]) or tonumber(values[at]) or defaults[option]
  end
  return found
end

-- Return an option; without a queue one of the namespace's.
local function setting(option, queue)
  local key = queue or ""
  if not settings[key] then settings[key] = read_settings(queue and OF_A_QUEUE or OF_ALL, queue) end
  return settings[key][option]
end

local function keeps_completed() return setting("jobs-history") > 0 and setting("jobs-history-count") > 0 end

local function setting_ms(option, queue) return math.floor(setting(option, queue) * 1000) end
