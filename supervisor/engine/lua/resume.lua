#!lua flags=allow-oom
-- resume.lua — after an exchange without a reply: renew what the worker knows, and hand back what it does not know.
--
-- Called by: leasing.resume (supervisor/engine/commands/leasing.py)
-- Holds:     INV-6 a job that was leased but never started goes to the front uncounted; INV-3 tokens only grow, also if
--            the server has lost its last writes, above all that this worker was given
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   number, above every earlier one of this worker; exchanges with a smaller one are refused from now on
-- ARGV[4]   ttl in ms; "" = the heartbeat of the job's queue
-- ARGV[5]   the highest token that the worker ever got; 0 = none
-- ARGV[6..] per known lease: jid, token
--
-- Returns   array: how many jobs were handed back, now in ms, then per known lease what renew.lua answers.
-- Errors    SUPERSEDED if the number is not above the last one: the call comes from a dead connection. DEREGISTERED if
--           a worker that had a number is unknown. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include while_moving
--- @include this_layout
--- @include clock
--- @include config
--- @include gone
--- @include course
--- @include moves
local worker, number, ttl, highest = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local exchange, held = P .. "worker:" .. worker, P .. "held:" .. worker

local last_number = tonumber(redis.call("HGET", exchange, "number"))
if last_number and number <= last_number then
  refuse("SUPERSEDED", "number " .. ARGV[3] .. " is not above the worker's last one, " .. digits(last_number))
end
if not last_number and number > 1 then refuse("DEREGISTERED", "worker " .. worker .. " is not known") end

local known, answers = {}, { 0, now }
local jids = {}
for at = 6, #ARGV, 2 do jids[#jids + 1] = ARGV[at] end
for i, job in ipairs(peek(jids, "owner", "queue", "state")) do
  local jid = jids[i]
  local expiry = job[2] and "" or gone_word(jid)
  if job[1] == ARGV[5 + 2 * i] .. ":" .. worker and job[3] == "running" then
    known[jid] = true
    expiry = now + (ttl or setting_ms("heartbeat", job[2]))
    place(queue_key(job[2], "running"), jid, expiry)
  end
  answers[#answers + 1] = expiry
end

for _, jid in ipairs(redis.call("ZRANGE", held, 0, -1)) do
  if not known[jid] and moves.hand_back(jid, worker, true) then
    answers[1] = answers[1] + 1
    publish_job_event("job.released", read_job(jid), { worker = worker })
  end
end

-- Leases refuse a damaged counter, and a check repairs it.
local last = layout.first_token or tonumber(string.match(layout.token or "0", "^%d+$"))
if last and last < highest then raise("token", highest - last) end

if not last_number then note_course("INCRBY", "u32", 96, 1) end
set_fields({ exchange, "number", number, "since", number })
expire(exchange, setting_ms("max-worker-age"))
place(P .. "workers-seen", worker, now)
commit()
return answers
