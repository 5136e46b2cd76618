#!lua
-- put.lua — create jobs, or move known ones, wherever they are; all of the batch or nothing.
--
-- Called by: commands.put (supervisor/engine/commands.py)
-- Holds:     INV-1 a job lies in exactly one place; INV-3 a put begins a new stage, and whoever ran the job has lost it
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2..] per job: "put" | "add", queue, jid, klass, "1" if the data is raw bytes else "", data, delay in ms | "",
--           time in unix ms | "", number of options, then that many times an option's field and value
--
-- Returns   array of 1 (created or moved) and 0 (add of a known jid: nothing changed), one per job.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include clock
--- @include moves
local OPTIONS = { "priority", "retries", "timeout", "max_deaths" }
local known, answers, at = {}, {}, 2

-- The job's new stage: what put gave, and the options that it kept silent about.
local function new_stage(old, queue, jid, klass, bytes, data, options)
  local rec = { jid = jid, queue = queue, klass = klass, seq = next_seq(), put = now }
  for _, option in ipairs(OPTIONS) do rec[option] = options[option] or old[option] end
  if rec.priority == "0" then rec.priority = nil end
  if bytes == "1" then rec.bytes = "1" end
  if #data > 1024 then rec.size = #data end
  return rec
end

local function read_options(first, n)
  local options = {}
  for i = first, first + 2 * n - 1, 2 do options[ARGV[i]] = ARGV[i + 1] end
  return options
end

local function lay_down(rec, due)
  if due and due > now then
    schedule(rec, due)
  else
    place(queue_key(rec.queue, "waiting"), member_of(rec.jid, rec.seq), rec.priority or 0)
    ring(rec.queue)
  end
end

while at <= #ARGV do
  local verb, queue, jid, klass, bytes, data, delay, time, n = unpack(ARGV, at, at + 8)
  local old = known[jid] or read_job(jid)
  if old and verb == "add" then
    answers[#answers + 1] = 0
  else
    if old then
      leave(old)
      forget(jid)
    end
    local rec = new_stage(old or {}, queue, jid, klass, bytes, data, read_options(at + 9, n))
    lay_down(rec, tonumber(time) or tonumber(delay) and now + delay)
    store(P .. "data:" .. jid, data)
    known[jid] = rec
    answers[#answers + 1] = 1
  end
  at = at + 9 + 2 * n
end

local queues = {}
for jid, rec in pairs(known) do
  queues[rec.queue] = true
  local fields = { job_key(jid) }
  for field, value in pairs(rec) do
    if field ~= "jid" then
      fields[#fields + 1] = field
      fields[#fields + 1] = value
    end
  end
  set_fields(fields)
end
for queue in pairs(queues) do
  if not redis.call("ZSCORE", P .. "queues", queue) then place(P .. "queues", queue, now) end
end
commit()
return answers
