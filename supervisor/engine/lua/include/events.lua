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

-- Leave a hint in a worker's mailbox: it holds less than it believes, or there is a new queue. Only workers that number
-- their exchanges read it, and one unread hint of a kind suffices.
local function hint(worker, message)
  local mail = P .. "mail:" .. worker
  for _, planned in ipairs(lists[mail] or {}) do
    if planned == message then return end
  end
  if redis.call("HEXISTS", P .. "worker:" .. worker, "number") == 1 and not redis.call("LPOS", mail, message) then
    push(mail, message, 100, 3600000)
  end
end
