-- events.lua: publishes events to listeners. Without a listener that costs one query per script.
--- @include clock
--- @include plan
--- @include listeners
-- Publish an event of a job; `job` needs jid, queue and klass. Tracked jobs have a channel of their own.
-- `more`: further fields; `message`: one that is already JSON, without its quotes.
local function publish_job_event(event, job, more, message)
  if not job.tracked and not has_listeners() then return end
  local fields = more or {}
  fields.event, fields.when, fields.jid, fields.queue, fields.klass = event, now / 1000, job.jid, job.queue, job.klass
  if job.tracked then fields.tracked = true end
  local text = cjson.encode(fields)
  if message then text = string.sub(text, 1, -2) .. ',"message":"' .. message .. '"}' end
  if has_listeners() then publish("events", text) end
  if job.tracked then publish("tracked", text) end
end

-- Publish an event without a job.
local function publish_event(event, fields)
  if not has_listeners() then return end
  fields.event, fields.when = event, now / 1000
  publish("events", cjson.encode(fields))
end

-- True if one of the messages is a hint of the kind; and whether one of those is about all.
local function has_hint(messages, kind)
  local has_one = false
  for _, message in ipairs(messages) do
    if message == kind then return true, true end
    if string.sub(message, 1, #kind + 1) == kind .. " " then has_one = true end
  end
  return has_one, false
end

-- Leave a hint in a worker's mailbox: it holds less than it believes, or there is a new queue. Only workers that number
-- their exchanges read it. A hint may be `about` one thing; a second unread one of its kind is about all.
local function hint(worker, kind, about)
  local mail = P .. "mail:" .. worker
  local is_planned, suffices = has_hint(lists[mail] or {}, kind)
  if suffices or redis.call("HEXISTS", P .. "worker:" .. worker, "number") == 0 then return end
  local is_unread
  is_unread, suffices = has_hint(redis.call("LRANGE", mail, 0, -1), kind)
  if suffices then return end
  push(mail, about and not (is_planned or is_unread) and kind .. " " .. about or kind, 100, 3600000)
end
