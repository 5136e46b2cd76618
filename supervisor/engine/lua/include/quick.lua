-- quick.lua: what the quick paths share. A quick path is the first part of a script. It carries out the calls that come
-- by the ten thousand, on dense records, in few calls of Redis, without the plan, before the functions of the rest are
-- defined. If it meets anything else it returns nil without having written, and the rest of the script does it all. It
-- changes Redis and publishes exactly as the rest would, and also reads first and writes then.
--- @include layout
--- @include clock
--- @include listeners
--- @include chunks
local INLINE = 512 -- INLINE_BYTES of dense.lua
local now_text = string.format("%.0f", now) -- every call that takes a number would convert it again
local now_in_record = string.format("%013.0f", now)
-- A dense record has room for such a time only, and the first write marks the layout.
local is_quick = layout.state == "2" and #now_in_record == 13 and now >= 0

-- Return the number of a counter; nil if it is none, or too large.
local function value_of(counter)
  local text = layout[counter] or redis.call("GET", P .. counter)
  if not text then return 0 end
  local value = string.find(text, "^%d+$") and tonumber(text)
  return value and value < 2 ^ 51 and value
end

-- Publish an event of a job.
local function quick_event(event, jid, queue, klass, more)
  more.event, more.when, more.jid, more.queue, more.klass = event, now / 1000, jid, queue, klass
  redis.pcall("PUBLISH", P .. "events", cjson.encode(more))
end
