-- events.lua: what happens, said to whoever listens; while nobody does it costs one look per script.
--- @include clock
--- @include plan
--- @include heard
-- Says that something happened to a job; `job` needs jid, queue and klass. Tracked ones have a channel of their own.
-- `more`: further fields; `message`: one that is encoded as JSON already, without its quotes.
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

-- Says something that is about no job.
local function announce(event, said)
  if not heard() then return end
  said.event, said.when = event, now / 1000
  publish("events", cjson.encode(said))
end

-- A hint in a worker's mailbox: it holds less than it believes, or knows fewer queues than there are. Only those that
-- number their exchanges read it, and one unread hint of a kind says it all.
local function hint(worker, message)
  local mail = P .. "mail:" .. worker
  for _, planned in ipairs(lists[mail] or {}) do
    if planned == message then return end
  end
  if redis.call("HEXISTS", P .. "worker:" .. worker, "number") == 1 and not redis.call("LPOS", mail, message) then
    push(mail, message, 100, 3600000)
  end
end
