-- quick.lua: what the quick paths share. A quick path is the first part of a script. It carries out the calls that come
-- by the ten thousand, on dense records, in few calls of Redis, without the plan, before the functions of the rest are
-- defined. If it meets anything else it returns nil without having written, and the rest of the script does it all. It
-- changes Redis and publishes exactly as the rest would, and also reads first and writes then.
--
-- A quick path is one function, and what it rarely needs is defined where it is needed: to define a function, or to
-- make a table, takes as long as a call of Redis.
--- @include prefix
--- @include layout
--- @include clock
--- @include chunks
local INLINE = 512 -- INLINE_BYTES of dense.lua
local now_text = string.format("%.0f", now) -- every call that takes a number would convert it again
local now_in_record = string.format("%013.0f", now)
-- A dense record has room for such a time only, and the first write marks the layout.
local is_quick = layout.state == "2" and #now_in_record == 13 and now >= 0

-- Publish an event of some jobs: quick_publish(event, jids, of), where of(i) returns queue, klass and further fields.
local function quick_publish(event, jids, of)
  for i, jid in ipairs(jids) do
    local queue, klass, fields = of(i)
    fields.event, fields.when, fields.jid, fields.queue, fields.klass = event, now / 1000, jid, queue, klass
    redis.pcall("PUBLISH", P .. "events", cjson.encode(fields))
  end
end
