#!lua flags=allow-oom
-- renew.lua — extend leases, report starts, and store new data and checkpoints.
--
-- Called by: leasing.renew (supervisor/engine/commands/leasing.py)
-- Holds:     INV-5 a late renewal succeeds until another worker has taken the job
--            INV-3 only the current token and worker may store anything
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   number of the exchange; "" = none. A number below the worker's last one stores no checkpoint and no step:
--           it comes from a dead connection, and there may be a newer one.
-- ARGV[4]   ttl in ms; "" = the heartbeat of the job's queue
-- ARGV[5..] per lease: jid, token, "1" if the job is known to have started else "", kind of new data ("", "json" or
--           "bytes"), the data | "", progress as a fraction | "", and its text, name of a step | "", its result or a
--           checkpoint as JSON | ""
--
-- Returns   array: now in ms, then one per lease: its new expiry in ms, "" if it is lost, or "gone" if the job no
--           longer exists, followed by ":" if it was cancelled, and by whom, if known.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include while_moving
--- @include this_layout
--- @include clock
--- @include config
--- @include events
--- @include gone
--- @include record
--- @include replay
local worker, number, ttl, answers, has_any = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), { now }, false

-- Store the job's last progress report.
local function store_progress(jid, fraction, text)
  store(P .. "progress:" .. jid, cjson.encode({ fraction, text, now / 1000 }))
  local rec = read_job(jid)
  rec.progress = 1
  publish_job_event("job.progressed", rec, { worker = worker, fraction = fraction, text = text })
end

local came_late
local function is_late()
  if came_late == nil then
    local last_number = number and redis.call("HGET", P .. "worker:" .. worker, "number")
    came_late = number and number < (tonumber(last_number or nil) or 0)
  end
  return came_late
end

-- The record keeps the checkpoint's size, from which a lease computes the size of its reply.
local function save(jid, step, state)
  if is_late() then return end
  if step ~= "" then return replay.save_step(read_job(jid), step, state) end
  store(P .. "saved:" .. jid, state)
  read_job(jid).saved = #state
end

local jids = {}
for at = 5, #ARGV, 9 do jids[#jids + 1] = ARGV[at] end
read_ahead(jids)
for at = 5, #ARGV, 9 do
  local jid, token, started, kind, data, fraction, text, step, state = unpack(ARGV, at, at + 8)
  local rec = read_job(jid)
  if rec and rec.owner == token .. ":" .. worker and rec.state == "running" then
    local expiry = now + (ttl or setting_ms("heartbeat", rec.queue))
    place(queue_key(rec.queue, "running"), jid, expiry)
    if started == "1" then rec.started = rec.started or 1 end
    if kind ~= "" then set_data(rec, kind, data) end
    if fraction ~= "" then store_progress(jid, tonumber(fraction), text) end
    if state ~= "" then save(jid, step, state) end
    answers[#answers + 1], has_any = expiry, true
  else
    answers[#answers + 1] = rec and "" or gone_word(jid)
  end
end
if has_any then place(P .. "workers-seen", worker, now) end -- a deregistered worker does not come back by a renewal
commit()
return answers
