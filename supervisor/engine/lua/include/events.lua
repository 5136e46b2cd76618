-- events.lua: publishes events to listeners. Without a listener that costs one query per script.
--- @include clock
--- @include plan
--- @include heard
-- Publish an event of a job; `job` needs jid, queue and klass. Tracked jobs have a channel of their own.
-- `more`: further fields; `message`: one that is already JSON, without its quotes.
local function tell_of(event, job, more, message)
  if not job.tracked and not heard() then return end
  local said = more or {}
  said.event, said.when, said.jid, said.queue, said.klass = event, now / 1000, job.jid, job.queue, job.klass
  if job.tracked then said.tracked = true end
  local text = cjson.encode(said)
  if message then text = string.sub(text, 1, -2) .. ',"message":"' .. message .. '"}' end
  if heard() then publish("events", text) end
  if job.tracked then publish("tracked", text) end
end

-- Publish an event without a job.
local function announce(event, said)
  if not heard() then return end
  said.event, said.when = event, now / 1000
  publish("events", cjson.encode(said))
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
