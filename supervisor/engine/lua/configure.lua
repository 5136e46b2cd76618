#!lua flags=allow-oom
-- configure.lua — set an option of the configuration, or unset it.
--
-- Called by: settings.configure (supervisor/engine/commands/settings.py)
-- Holds:     a worker that waits for a freed queue is woken
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   option
-- ARGV[3]   queue; "" = the namespace, for the queues without a value of their own
-- ARGV[4]   value; "" = unset it
-- ARGV[5]   name of the actor; "" = unknown
--
-- Returns   1, or 0 if it had this value.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include plan
--- @include events
--- @include acts
local option, queue, value, by = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local FREEING = { paused = true, ["max-concurrency"] = true, grace = true }

local key, field = P .. "options", queue == "" and option or option .. "-" .. queue
local had = redis.call("HGET", key, field) or ""
if had == value then return 0 end
if value == "" then del_fields({ key, field }) else set_fields({ key, field, value }) end

local is_pause, mark = option == "paused" and value == "1", "by:" .. field
-- The mark of the layout says whether there are options.
local function has_others()
  local removed = redis.call("HEXISTS", key, mark) == 1 and option == "paused" and 2 or 1
  return redis.call("HLEN", key) > removed
end
local will_have_options = value ~= "" or has_others()
if will_have_options ~= layout.has_options then
  layout.has_options = will_have_options
  store(P .. "config", layout.mark())
end

if option == "paused" then
  if is_pause then set_fields({ key, mark, digits(now) .. ":" .. by }) else del_fields({ key, mark }) end
  acts.note(by, is_pause and "pause" or "unpause", "queue", { queue ~= "" and queue or nil })
  publish_event(is_pause and "queue.paused" or "queue.unpaused", {
    queue = queue ~= "" and queue or nil, by = is_pause and by ~= "" and by or nil,
  })
else
  acts.note(by, value == "" and "unset" or "set", "option", { field }, queue, value)
  publish_event("config.changed", { option = field, value = value ~= "" and value or nil })
end

if FREEING[option] and not (option == "paused" and value == "1") then
  local freed = queue == "" and redis.call("ZRANGE", P .. "queues", 0, -1) or { queue }
  for _, one in ipairs(freed) do
    if queue == "" or redis.call("ZSCORE", P .. "queues", one) then wake(one) end
  end
end
commit()
return 1
