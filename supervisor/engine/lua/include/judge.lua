-- judge.lua: what is wrong with a job, and its repair. All of a job is read in one call, so a job that moves between
-- two calls is not mistaken for a damaged one. It shares no code with the moves, which trust what they read.
--- @include judge_place
--- @include judge_lane
--- @include judge_limit
--- @include judge_apart
--- @include judge_claim
local judge = {}
local STATES = { scheduled = true, running = true, failed = true, complete = true, depends = true }
local NUMBERS = {
  "priority", "retries", "timeout", "max_deaths", "failures", "deaths", "interruptions", "turn", "popped", "since",
  "due", "ready", "size", "unknown", "backlog", "count", "expires", "short", "awaited", "collected",
}
local FLAGS = { once = "^[01]$", persistent = "^1$" }

function judge.fresh_seq()
  local value = is_there("seq", "string") and redis.call("GET", P .. "seq") or types.seq == "none" and "0"
  if counted(value) then return next_seq() end
  drawn("seq", 0)
  return 0 -- the counter is repaired first, and this is judged again
end

function judge.fail_job(rec, group, message)
  leave_all(rec)
  judge_claim.end_all(rec)
  strip(rec)
  change(rec, "turn", nil)
  change(rec, "state", "failed")
  change(rec, "group", group)
  settle_in(rec)
  store(P .. "failure:" .. rec.jid, cjson.encode({ group = group, message = message, when = now / 1000 }))
  if is_there("history:" .. rec.jid, "list") or types["history:" .. rec.jid] == "none" then
    change(rec, "noted", "1")
    push(P .. "history:" .. rec.jid, cjson.encode({ what = "failed", group = group, when = now / 1000 }), 99)
  end
end

function judge.fields(rec, kind)
  local function take(field, what)
    report(kind, rec.jid, "has a " .. field .. " that is no " .. what, "took that from it")
    change(rec, field, nil)
  end
  for _, field in ipairs(NUMBERS) do
    local is_right = field == "turn" and counted or whole
    if rec[field] and not is_right(rec[field]) then take(field, "number") end
  end
  for field, wanted in pairs(FLAGS) do
    if rec[field] and not string.match(rec[field], wanted) then take(field, "answer") end
  end
  local function is_name(text) return text ~= "" and #text <= 64 and not string.find(text, "%c") end
  for _, field in ipairs({ "lane", "trace", "batch" }) do
    if rec[field] and not is_name(rec[field]) then take(field, "name") end
  end
  local keys = limits_in(rec.limit)
  local is_right = #keys > 0 and #keys <= 8 and table.concat(keys, "\t") == rec.limit
  for _, key in ipairs(keys) do is_right = is_right and is_name(key) end
  if rec.limit and not is_right then take("limit", "name") end
  if rec.mode and not string.find(" debounce throttle collect ", " " .. rec.mode .. " ", 1, true) then
    take("mode", "mode")
  end
  if rec.persistent and rec.once == "1" then
    report(kind, rec.jid, "is persistent, and must not start twice", "wrote that it is not persistent")
    change(rec, "persistent", nil)
  end
end

-- A record must name what to run, where, on what data, and in which order.
function judge.identity(rec)
  local jid, over, lacks = rec.jid, is_over(rec), {}
  drawn("seq", counted(rec.seq))
  if not is_given(rec.klass) then lacks[#lacks + 1] = "klass" end
  if not is_given(rec.queue) then lacks[#lacks + 1] = "queue" end
  if not dense_records[rec] and not is_there("data:" .. jid, "string") then
    lacks[#lacks + 1] = "data"
    store(P .. "data:" .. jid, "null")
    change(rec, "bytes", nil)
    change(rec, "size", nil)
  end
  local what = table.concat(lacks, ", no ")
  if #lacks > 0 then
    report("half-written-job", jid, "has no " .. what,
      over and "wrote a stand-in for it" or "failed it in group broken, with what there is of it")
    if not over then judge.fail_job(rec, "broken", "a check found this job with no " .. what) end
    if not is_given(rec.klass) then change(rec, "klass", "broken") end
    if not is_given(rec.queue) then change(rec, "queue", "broken") end
  end
  if not counted(rec.seq) then
    report("half-written-job", jid, "has no sequence number", "gave it a new one")
    change(rec, "seq", text_of(judge.fresh_seq()))
  end
  if not whole(rec.put) then
    report("half-written-job", jid, "does not say when it was put", "wrote the time of the check")
    change(rec, "put", text_of(now))
  end
  judge.fields(rec, "half-written-job")
end

-- A job is parked under a limit, or for its klass; a job that lies aside has had its turn, and its lane is paused.
function judge.waiting(rec)
  local jid = rec.jid
  local wanted = waits_for(rec.parked)
  if wanted and (rec.state or wanted == "limit" and not parked_under(rec)) then
    local why = rec.state and "is parked, but its state is " .. rec.state or "is parked, but under no limit"
    report("half-written-job", jid, why, "wrote that it is not parked")
    move_in("queue:" .. rec.queue .. (wanted == "klass" and ":apart" or ":parked"), jid, nil)
    change(rec, "parked", nil)
    if not rec.state then read_and_wake(rec.queue) end
  end
  if rec.aside and (rec.state or rec.parked or not rec.turn or not rec.lane) then
    local lacks = not rec.turn and "has had no turn" or not rec.lane and "has no lane" or "is not"
    report("half-written-job", jid, "says that it lies aside, but " .. lacks, "took that from it")
    change(rec, "aside", nil)
  end
end

function judge.state(rec)
  local jid, state, token = rec.jid, rec.state, holder_of(rec)
  drawn("token", counted(token))
  drawn("token", counted(rec.turn))
  if state and not STATES[state] then
    report("half-written-job", jid, "has the state " .. state .. ", which is none", "put it back into its queue")
    requeue(rec)
  elseif state == "running" and not token then
    report("half-written-job", jid, "is running, but does not say for whom", "put it back into its queue")
    requeue(rec)
  elseif state == "failed" and not is_given(rec.group) then
    report("half-written-job", jid, "has failed, but does not say in which group", "took it into group broken")
    change(rec, "group", "broken")
  elseif rec.owner and state ~= "running" and state ~= "complete" then
    report("stray-lease", jid, "does not run, but has an owner", "made the owner's token void")
    change(rec, "owner", nil)
    change(rec, "started", nil)
  end
  judge.waiting(rec)
end

-- Return whether a sweep has still to tell the dependents of a job of its end.
local function is_untold(jid)
  if not is_there("untold", "zset") then return false end
  for _, member in ipairs(redis.call("ZRANGE", P .. "untold", 0, 9999)) do
    local untold = string.match(member, "^%l+:([^\n]*)")
    if untold == jid then return true end
  end
  return false
end

-- Return why a job does not wait for this parent any more; nil if it does.
function judge.why_not(rec, parent)
  local other = record_of(parent)
  if parent == rec.jid then return "which is itself" end
  if is_untold(parent) then return nil end
  if not other then return "of which there is no record" end
  if other.state == "complete" then return "which is complete" end
  return other.state == "failed" and rec.policy and "which has failed" or nil
end

function judge.parent(rec, parent)
  local edge = "dependents:" .. parent
  if not score_in(edge, rec.jid) then
    report("missing-dependent", rec.jid, "waits for " .. parent .. ", which does not list it", "listed it there")
    move_in(edge, rec.jid, now)
  end
  local other = record_of(parent)
  if other and not other.kin and not is_untold(parent) then
    report("missing-dependent", parent, "does not say that others wait for it", "wrote that they do")
    change(other, "kin", "1")
  end
end

function judge.dependencies(rec)
  local jid, name, left = rec.jid, "dependencies:" .. rec.jid, 0
  local parents = is_there(name, "zset") and redis.call("ZRANGE", P .. name, 0, -1) or {}
  for _, parent in ipairs(parents) do
    local why = judge.why_not(rec, parent)
    if why then
      report("dangling-dependency", jid, "waits for " .. parent .. ", " .. why, "counted that as satisfied")
      move_in(name, parent, nil)
      move_in("dependents:" .. parent, jid, nil)
      local failed = why == "which has failed" and rec.policy == "fail"
      if failed and rec.state == "depends" then
        judge.fail_job(rec, "parent-failed", "job " .. parent .. " has failed")
      end
    else
      left = left + 1
      judge.parent(rec, parent)
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

function judge.places(rec)
  for _, spot in ipairs(places_of(rec)) do
    local name, member, score, exact = unpack(spot)
    local found = score_in(name, member)
    if not found then
      report("job-in-no-place", rec.jid, "is not in " .. name .. ", where its record says that it lies", "put it there")
      move_in(name, member, score)
      if not rec.state or rec.state == "scheduled" then read_and_wake(rec.queue) end
    elseif exact and found ~= score then
      local half = found % 1 ~= score % 1 -- of leases: whether the record is a dense one
      local shown = half and function(number) return string.format("%.1f", number) end or text_of
      report("wrong-score", rec.jid, "has " .. shown(found) .. " in " .. name .. ", by its record it is " ..
        shown(score), "set it right")
      place(P .. name, member, score)
    end
  end
end

function judge.tags_of(jid)
  local found = {}
  local text = is_there("tags:" .. jid, "string") and redis.call("GET", P .. "tags:" .. jid) or ""
  for tag in string.gmatch(text, "[^\n]+") do found[#found + 1] = tag end
  return found
end

function judge.tags(rec)
  local jid, tags = rec.jid, judge.tags_of(rec.jid)
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

-- Return whether a text is the JSON of a number, a text and a time, as workers write it.
local PROGRESS = '^%[[%d%.eE+-]+,".*",[%d%.eE+-]+%]$'

function judge.progress(rec)
  local name = "progress:" .. rec.jid
  if judged[name] then return end
  judged[name] = true
  local text = is_there(name, "string") and redis.call("GET", P .. name)
  if text and not string.match(text, PROGRESS) then
    report("foreign-value", name, "is none: " .. string.sub(text, 1, 100), "deleted it")
    drop(P .. name)
    return change(rec, "progress", nil)
  end
  if (rec.progress ~= nil) == (text ~= false) then return end
  report("unsaid-rest", rec.jid, rec.progress and "has no progress, but its record says that it has"
    or "has progress, but its record does not say so", "set its record right")
  change(rec, "progress", text and "1" or nil)
end

function judge.saved(rec)
  local name = "saved:" .. rec.jid
  if judged[name] then return end
  judged[name] = true
  local size = is_there(name, "string") and tostring(redis.call("STRLEN", P .. name)) or nil
  if rec.saved == size then return end
  report("unsaid-rest", rec.jid, not size and "has no checkpoint, but its record says that it has"
    or "has a checkpoint of " .. size .. " bytes, but its record does not say so", "set its record right")
  change(rec, "saved", size)
end

function judge.parents(rec)
  local name = "parents:" .. rec.jid
  if judged[name] then return end
  judged[name] = true
  local are_there = is_there(name, "string")
  if (rec.parents ~= nil) == are_there then return end
  report("unsaid-rest", rec.jid, are_there and "has a list of parents, but its record does not say so"
    or "has no list of parents, but its record says that it has", "set its record right")
  change(rec, "parents", are_there and "1" or nil)
end

function judge.replay(rec)
  local name = "replay:" .. rec.jid
  if judged[name] then return end
  judged[name] = true
  local size, signals, steps = nil, nil, nil
  for _, field in ipairs(is_there(name, "hash") and redis.call("HKEYS", P .. name) or {}) do
    local bytes = #field + redis.call("HSTRLEN", P .. name, field)
    size = (size or 0) + bytes
    if string.sub(field, 1, 7) == "signal:" then signals = (signals or 0) + 1 end
    if string.sub(field, 1, 5) == "step:" then steps = (steps or 0) + bytes end
  end
  local same = tonumber(rec.replay) == size and tonumber(rec.signals) == signals and tonumber(rec.steps) == steps
  if same then return end
  report("unsaid-rest", rec.jid, not size and "has no signals, waits or steps, but its record says that it has"
    or "has signals, waits or steps of " .. size .. " bytes, but its record does not say so", "set its record right")
  change(rec, "replay", size and tostring(size))
  change(rec, "signals", signals and tostring(signals))
  change(rec, "steps", steps and tostring(steps))
end

-- Return whether a job is more than record and data, or its end takes more than that of others.
local SPECIAL = {
  "kin", "noted", "tagged", "tracked", "limit", "unique", "expires", "once", "persistent", "awaited", "progress",
  "saved", "parents",
}
function judge.is_more(rec)
  for _, field in ipairs(SPECIAL) do
    if rec[field] then return true end
  end
  return false
end

-- Retention deletes a completed job unread if its score is a whole number: it must be only record and data then.
function judge.rest(rec)
  local jid = rec.jid
  local score = rec.state == "complete" and score_in("complete", jid)
  if not score or score % 1 > 0 then return end
  local parts = { "failure:", "result:", "history:", "tags:", "progress:", "saved:", "parents:" }
  for i, part in ipairs(parts) do parts[i] = P .. part .. jid end
  if judge.is_more(rec) or redis.call("EXISTS", unpack(parts)) > 0 then
    report("unsaid-rest", jid, "is more than its record and its data, but complete does not say so", "wrote that it is")
    place(P .. "complete", jid, score + 0.5)
  end
end

-- Judge all of one job. Return its record as repaired; false if there is none.
function judge.job(jid)
  local rec = record_of(jid)
  if not rec or judged[jid] then return rec end
  judged[jid] = true
  judge.identity(rec)
  judge.state(rec)
  if rec.state == "depends" then judge.dependencies(rec) end
  judge.places(rec)
  judge_claim.unique(rec)
  judge_claim.deadline(rec)
  if rec.progress then judge.progress(rec) end
  if rec.saved then judge.saved(rec) end
  if rec.parents then judge.parents(rec) end
  if rec.replay then judge.replay(rec) end
  if rec.tagged then judge.tags(rec) end
  if rec.batch then judge.membership(rec) end
  if rec.tracked and not score_in("tracked-jobs", jid) then
    report("untracked-job", jid, "is tracked, but is not among the tracked jobs", "listed it there")
    move_in("tracked-jobs", jid, now)
  end
  judge.rest(rec)
  return rec
end
