-- judge.lua: what is wrong with a job, and how it is mended. All of a job is looked at in one call, so one that moves
-- between two calls is not mistaken for a damaged one. It shares no code with the moves, which trust what they find.
--- @include evidence
local STATES = { scheduled = true, running = true, failed = true, complete = true, depends = true }
local NUMBERS = {
  "priority", "retries", "timeout", "max_deaths", "failures", "deaths", "interruptions", "turn", "popped", "since",
  "due", "size", "unknown", "backlog", "count",
}

local function record_of(jid)
  if records[jid] == nil then
    records[jid] = read_hash("job:" .. jid)
    if records[jid] then records[jid].jid = jid end
  end
  return records[jid]
end

local function fresh_seq()
  local value = is_there("seq", "string") and redis.call("GET", P .. "seq") or types.seq == "none" and "0"
  if whole(value) then return next_seq() end
  drawn("seq", 0)
  return 0 -- the counter is mended first, and this is asked for again
end

local function holder_of(rec)
  local token, worker = string.match(rec.owner or "", "^(%d+):(.+)$")
  if whole(token) then return token, worker end
end

-- Where a record says that its job lies: arrays of name, member, score, and whether it must be exactly that score.
local function places_of(rec)
  local jid, queue, state, seq, turn = rec.jid, rec.queue, rec.state, whole(rec.seq), whole(rec.turn)
  if state == "complete" then return { { "complete", jid, now + 0.5 } } end
  if state == "failed" then
    return { { "failed", jid, now }, says(rec.group) and { "failed:" .. rec.group, jid, now } or nil }
  end
  if not says(queue) then return {} end
  local at = "queue:" .. queue .. ":"
  if state == "running" then
    local token, worker = holder_of(rec)
    return { { at .. "running", jid, now }, token and { "held:" .. worker, jid, whole(token), true } }
  end
  if state == "depends" then return { { at .. "depends", jid, whole(rec.put) or now } } end
  if not state and turn then return { { at .. "front", jid, turn, true } } end
  if not seq or seq < 0 then return {} end
  if state == "scheduled" then return { { at .. "scheduled", member_of(jid, seq), now } } end
  if state then return {} end
  return { { at .. "waiting", member_of(jid, seq), whole(rec.priority) or 0, true } }
end

local function leave_all(rec)
  for _, spot in ipairs(places_of(rec)) do move_in(spot[1], spot[2], nil) end
end

local function settle_in(rec, due)
  for _, spot in ipairs(places_of(rec)) do move_in(spot[1], spot[2], due or spot[3]) end
  if rec.state and rec.state ~= "scheduled" then return end
  list_queue(rec.queue)
  wake(rec.queue)
end

local function strip(rec)
  for _, field in ipairs({ "owner", "started", "popped", "group", "due" }) do change(rec, field, nil) end
end

-- Back into its queue: to its time if that is still to come, to the front if it has a turn, else among the waiting.
local function requeue(rec, due)
  leave_all(rec)
  strip(rec)
  local later = due and due > now
  change(rec, "state", later and "scheduled" or nil)
  settle_in(rec, later and due or nil)
end

local function bury(rec, group, message)
  leave_all(rec)
  strip(rec)
  change(rec, "turn", nil)
  change(rec, "state", "failed")
  change(rec, "group", group)
  settle_in(rec)
  store(P .. "failure:" .. rec.jid, cjson.encode({ group = group, message = message, when = now / 1000 }))
  if is_there("history:" .. rec.jid, "list") or types["history:" .. rec.jid] == "none" then
    change(rec, "noted", "1")
    change(rec, "special", "1")
    push(P .. "history:" .. rec.jid, cjson.encode({ what = "failed", group = group, when = now / 1000 }), 99)
  end
end

local function judge_numbers(rec, kind)
  for _, field in ipairs(NUMBERS) do
    if rec[field] and not whole(rec[field]) then
      report(kind, rec.jid, "has a " .. field .. " that is no number", "took that from it")
      change(rec, field, nil)
    end
  end
end

-- A record must tell what to run, where, on what, and in which order.
local function judge_identity(rec)
  local jid, over, lacks = rec.jid, rec.state == "failed" or rec.state == "complete", {}
  drawn("seq", whole(rec.seq))
  if not says(rec.klass) then lacks[#lacks + 1] = "klass" end
  if not says(rec.queue) then lacks[#lacks + 1] = "queue" end
  if not is_there("data:" .. jid, "string") then
    lacks[#lacks + 1] = "data"
    store(P .. "data:" .. jid, "null")
    change(rec, "bytes", nil)
    change(rec, "size", nil)
  end
  local what = table.concat(lacks, ", no ")
  if #lacks > 0 then
    report("half-written-job", jid, "has no " .. what,
      over and "wrote a stand-in for it" or "failed it in group broken, with what there is of it")
    if not over then bury(rec, "broken", "a check found this job with no " .. what) end
    if not says(rec.klass) then change(rec, "klass", "broken") end
    if not says(rec.queue) then change(rec, "queue", "broken") end
  end
  if (whole(rec.seq) or -1) < 0 then
    report("half-written-job", jid, "has no sequence number", "gave it a new one")
    change(rec, "seq", text_of(fresh_seq()))
  end
  if not whole(rec.put) then
    report("half-written-job", jid, "does not say when it was put", "wrote the time of the check")
    change(rec, "put", text_of(now))
  end
  judge_numbers(rec, "half-written-job")
end

local function judge_state(rec)
  local jid, state, token = rec.jid, rec.state, holder_of(rec)
  drawn("token", whole(token))
  drawn("token", whole(rec.turn))
  if state and not STATES[state] then
    report("half-written-job", jid, "has the state " .. state .. ", which is none", "put it back into its queue")
    requeue(rec)
  elseif state == "running" and not token then
    report("half-written-job", jid, "is running, but does not say for whom", "put it back into its queue")
    requeue(rec)
  elseif state == "failed" and not says(rec.group) then
    report("half-written-job", jid, "has failed, but does not say in which group", "took it into group broken")
    change(rec, "group", "broken")
  elseif rec.owner and state ~= "running" and state ~= "complete" then
    report("stray-lease", jid, "does not run, but has an owner", "made the owner's token void")
    change(rec, "owner", nil)
    change(rec, "started", nil)
  end
end

-- Why a job does not wait for this parent any more; nil if it does.
local function why_not(rec, parent)
  local other = record_of(parent)
  if parent == rec.jid then return "which is itself" end
  if not other then return "of which there is no record" end
  if other.state == "complete" then return "which is complete" end
  return other.state == "failed" and rec.policy and "which has failed" or nil
end

local function judge_parent(rec, parent)
  local edge = "dependents:" .. parent
  if not score_in(edge, rec.jid) then
    report("missing-dependent", rec.jid, "waits for " .. parent .. ", which does not list it", "listed it there")
    move_in(edge, rec.jid, now)
  end
  if not record_of(parent).kin then
    report("missing-dependent", parent, "does not say that others wait for it", "wrote that they do")
    change(record_of(parent), "kin", "1")
  end
end

local function judge_dependencies(rec)
  local jid, name, left = rec.jid, "dependencies:" .. rec.jid, 0
  local parents = is_there(name, "zset") and redis.call("ZRANGE", P .. name, 0, -1) or {}
  for _, parent in ipairs(parents) do
    local why = why_not(rec, parent)
    if why then
      report("dangling-dependency", jid, "waits for " .. parent .. ", " .. why, "counted that as satisfied")
      move_in(name, parent, nil)
      move_in("dependents:" .. parent, jid, nil)
      local failed = why == "which has failed" and rec.policy == "fail"
      if failed and rec.state == "depends" then bury(rec, "parent-failed", "job " .. parent .. " has failed") end
    else
      left = left + 1
      judge_parent(rec, parent)
    end
  end
  if rec.state ~= "depends" then
    for _, parent in ipairs(parents) do
      move_in(name, parent, nil)
      move_in("dependents:" .. parent, jid, nil)
    end
  elseif left == 0 then
    if #parents == 0 then report("dangling-dependency", jid, "waits, but for no job", "let it run") end
    requeue(rec, whole(rec.due))
  end
end

local function judge_places(rec)
  for _, spot in ipairs(places_of(rec)) do
    local name, member, score, exact = unpack(spot)
    local found = score_in(name, member)
    if not found then
      report("job-in-no-place", rec.jid, "is not in " .. name .. ", where its record says that it lies", "put it there")
      move_in(name, member, score)
      if not rec.state or rec.state == "scheduled" then wake(rec.queue) end
    elseif exact and found ~= score then
      report("wrong-score", rec.jid, "has " .. text_of(found) .. " in " .. name .. ", by its record it is " ..
        text_of(score), "set it right")
      place(P .. name, member, score)
    end
  end
end

local function tags_of(jid)
  local found = {}
  local text = is_there("tags:" .. jid, "string") and redis.call("GET", P .. "tags:" .. jid) or ""
  for tag in string.gmatch(text, "[^\n]+") do found[#found + 1] = tag end
  return found
end

local function judge_tags(rec)
  local jid, tags = rec.jid, tags_of(rec.jid)
  if (#tags > 0) ~= (rec.tagged ~= nil) then
    report("unsaid-rest", jid, #tags > 0 and "has tags, but its record does not say so"
      or "has no tags, but its record says that it has", "set its record right")
    change(rec, "tagged", #tags > 0 and "1" or nil)
    if #tags == 0 then drop(P .. "tags:" .. jid) end
  end
  for _, tag in ipairs(tags) do
    if not score_in("tag:" .. tag, jid) then
      report("untagged-job", jid, "has the tag " .. tag .. ", but is not listed under it", "listed it there")
      move_in("tag:" .. tag, jid, now)
    end
  end
end

-- Retention deletes a completed job unread if its score is a whole number: then it must be but record and data.
local function judge_rest(rec)
  local jid = rec.jid
  if (rec.kin or rec.noted or rec.tagged or rec.tracked) and not rec.special then
    report("unsaid-rest", jid, "is more than its record and its data, but does not say so", "wrote that it is")
    change(rec, "special", "1")
  end
  local score = rec.state == "complete" and score_in("complete", jid)
  if not score or score % 1 > 0 then return end
  local parts = { "failure:", "result:", "history:", "tags:" }
  for i, part in ipairs(parts) do parts[i] = P .. part .. jid end
  if rec.special or redis.call("EXISTS", unpack(parts)) > 0 then
    report("unsaid-rest", jid, "is more than its record and its data, but complete does not say so", "wrote that it is")
    place(P .. "complete", jid, score + 0.5)
  end
end

-- All that can be wrong with one job. Answers its record as it is when mended; false if there is none.
local function judge_job(jid)
  local rec = record_of(jid)
  if not rec or judged[jid] then return rec end
  judged[jid] = true
  judge_identity(rec)
  judge_state(rec)
  if rec.state == "depends" then judge_dependencies(rec) end
  judge_places(rec)
  if rec.tagged then judge_tags(rec) end
  if rec.tracked and not score_in("tracked", jid) then
    report("untracked-job", jid, "is tracked, but is not among the tracked jobs", "listed it there")
    move_in("tracked", jid, now)
  end
  judge_rest(rec)
  return rec
end
