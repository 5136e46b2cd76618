-- config.lua: an option of a queue: `<option>-<queue>`, else `<option>`, else the default. Seconds, or counts.
--- @include keys
local DEFAULTS = {
  ["heartbeat"] = 30, ["grace"] = 5, ["max-worker-age"] = 86400, ["max-deaths"] = 3, ["unknown-for"] = 3600,
  ["jobs-history"] = 604800, ["jobs-history-count"] = 50000, ["failed-history"] = 0, ["failed-history-count"] = 50000,
}
local settings = {}

local function setting(option, queue)
  local name = queue and option .. "-" .. queue or option
  local value = settings[name]
  if not value then
    local found = redis.call("HMGET", P .. "config", name, option)
    value = tonumber(found[1] or found[2]) or DEFAULTS[option]
    settings[name] = value
  end
  return value
end

local function setting_ms(option, queue) return math.floor(setting(option, queue) * 1000) end
