-- stage.lua: how a job comes into a queue: created, moved or advanced. Each time a new stage of its life begins.
--- @module
--- @include moves
--- @include tagging
--- @include claims
--- @include batches
--- @include modes
stage.OPTIONS = {
  "priority", "retries", "timeout", "max_deaths", "policy", "lane", "limit", "expires", "once", "persistent",
  "trace",
}
-- Defaults are not stored.
local DEFAULTS = { priority = "0", policy = "wait", persistent = "0" }
local known_queues, has_hinted, NONE = {}, false, {}
-- No put creates a queue beyond these: each queue costs memory, and time in every sweep.
local MOST_QUEUES = 100000
local planned_queues, n_planned = {}, 0

-- Return whether a queue is known, or may be created. All that this script asked for count.
function stage.has_room(queue)
  if known_queues[queue] or planned_queues[queue] or redis.call("ZSCORE", P .. "queues", queue) then return true end
  if redis.call("ZCARD", P .. "queues") + n_planned >= MOST_QUEUES then return false end
  planned_queues[queue], n_planned = true, n_planned + 1
  return true
end

function stage.why_no_room(queue)
  return "queue " .. queue .. " is a new one, and there are " .. MOST_QUEUES .. " already: put to one of those, or"
    .. " delete some (leasehold queues NAME --delete); unused ones go by themselves after max-worker-age"
end

-- End the script if this would be a queue too many.
function stage.check_room(queue)
  if not stage.has_room(queue) then refuse("REFUSED", stage.why_no_room(queue)) end
end

-- A queue is in use from now on, also one that this script has taken for idle: a batch may end after that, and put its
-- callback there. Workers that serve queues by pattern get a hint of a new one.
function stage.know_queue(queue)
  if known_queues[queue] then return end
  known_queues[queue] = true
  if score_of(P .. "idle", queue) then place(P .. "idle", queue, false) end
  if score_of(P .. "queues", queue) then return end
  place(P .. "queues", queue, now)
  if has_hinted then return end
  has_hinted = true -- one hint suffices for all new queues of a call
  for _, worker in ipairs(redis.call("ZREVRANGE", P .. "workers-seen", 0, 999)) do hint(worker, "queues") end
end

-- Return a jid that no job has: this one, or with a random end, for which digits of a long one are cut. A predictable
-- end could be taken by other programs on purpose.
function stage.free_jid(jid)
  local time, free = redis.call("TIME"), jid
  local drawn_bytes = math.max(4, math.min(12, 63 - #jid))
  local kept = string.sub(jid, 1, 63 - drawn_bytes)
  for try = 1, 8 do
    if not read_job(free) then return free end
    local drawn = redis.sha1hex(jid .. time[1] .. time[2] .. try)
    free = kept .. "-" .. string.sub(drawn, 1, drawn_bytes)
  end
  refuse("REFUSED", "no free jid was found that begins with " .. jid)
end

-- Begin a stage of a job that lies in no place: its retries and counts start anew. It claims its key in the new queue,
-- or goes without if another job has that.
function stage.begin(rec, queue, since)
  if rec.put then
    rec.born = rec.born or rec.put .. ":" .. rec.queue
    note(rec, "put", { queue = queue })
  end
  if rec.unique and rec.queue and rec.queue ~= queue then claims.release(rec) end
  rec.queue, rec.put, rec.seq, holders[rec.jid] = queue, since or now, nil, nil
  rec.turn, rec.since, rec.unknown, rec.failures, rec.deaths, rec.interruptions = nil, nil, nil, nil, nil, nil
  rec.short, rec.left, rec.begun, rec.lost = nil, nil, nil, nil
  if rec.unique then claims.take(rec) end
  if rec.expires then place(P .. "expiring", rec.jid, rec.put + rec.expires) end
  stage.know_queue(queue)
end

function stage.set_data(rec, kind, data)
  rec.entry = nil
  set_data(rec, kind, data)
end

-- Return why a job cannot wait for these parents; nil if it can. A new job without dependents needs no search.
function stage.why_not(rec, parents)
  for _, parent in ipairs(parents) do
    if parent == rec.jid then return "job " .. rec.jid .. " cannot depend on itself" end
    if not edges.has_room(rec.jid, parent) then
      return "job " .. rec.jid .. " cannot depend on " .. parent .. ", as 1000 jobs do: let it depend on one of them"
    end
  end
  return edges.why_too_many(rec.jid, #parents, 0) or rec.kin and edges.why_circular(rec.jid, parents)
end

-- Return which of these jobs have not ended, the jids of those that have, and one whose failure fails the job. Unknown
-- ones count as complete; with the ended ones are those that have left a result.
function stage.sort_parents(rec, parents)
  local unmet, ended, fatal = {}, {}, nil
  for _, jid in ipairs(parents) do
    local parent = read_job(jid)
    if parent and parent.state == "failed" and rec.policy then
      fatal = fatal or rec.policy == "fail" and jid
      ended[#ended + 1] = jid
    elseif parent and parent.state ~= "complete" then
      unmet[#unmet + 1] = parent
    elseif parent or score_of(P .. "kept", jid) then
      ended[#ended + 1] = jid
    end
  end
  return unmet, ended, fatal
end

-- Have a job wait for its parents, and find the results of those that have ended.
function stage.bind(rec, unmet, ended)
  for _, parent in ipairs(unmet) do edges.bind(rec, parent) end
  for _, jid in ipairs(ended) do
    local parent = read_job(jid)
    if parent then
      results.expect_from(parent)
      parent.kin = 1
    end
    results.leave_to(rec.jid, jid)
  end
end

-- Put a job into the place where its new stage begins.
function stage.lay_down(rec, due, parents)
  local unmet, ended, fatal = NONE, NONE, nil
  if #parents > 0 then unmet, ended, fatal = stage.sort_parents(rec, parents) end
  local waits = due and due > now
  if fatal or #unmet > 0 or waits then rec.seq = next_seq() end
  if not fatal then stage.bind(rec, unmet, ended) end
  if fatal then
    kin.fail_for(rec, fatal, "depends, has failed")
  elseif #unmet > 0 then
    rec.state, rec.due = "depends", waits and due or nil
    place(queue_key(rec.queue, "depends"), rec.jid, now)
  elseif waits then
    moves.to_scheduled(rec, due)
  else
    moves.to_waiting(rec)
  end
end

local function read_options(first, n)
  if n == "0" then return NONE end
  local options = {}
  for i = first, first + 2 * n - 1, 2 do options[ARGV[i]] = ARGV[i + 1] end
  return options
end

-- Options not given stay as they are; "" removes one.
local function choose(rec, options)
  for _, option in ipairs(stage.OPTIONS) do
    local value = options[option] or rec[option]
    rec[option] = value ~= "" and value ~= DEFAULTS[option] and value or nil
  end
  --   A put with one of these takes the other one back.
  if options.persistent == "1" and moves.is_once(rec) then rec.once = nil end
  if options.once == "1" then rec.persistent = nil end
end

-- Put, add (only create) or move (only move, unchanged) one job. Return 1, or 0 if nothing was to be done, or the jid
-- of the job that holds the key of its claim; or nil, and why it cannot be: nothing has changed then.
function stage.put(verb, queue, jid, klass, kind, data, due, options)
  local rec = read_job(jid)
  if verb == (rec and "add" or "move") then return 0 end
  local unique = rec and rec.unique
  if verb ~= "move" then
    if options.unique then unique = claims.key(options.unique, data) end
    local holder = unique and claims.holder(queue, unique)
    if options.mode then
      local put = { queue = queue, jid = jid, klass = klass, kind = kind, data = data, due = due, options = options }
      local answer = modes.answer(put, unique)
      if answer then return answer end
    elseif holder and holder ~= jid then
      return verb == "add" and 0 or holder
    end
  end
  local waits = rec and rec.state == "depends" and not options.depends and edges.parents_of(jid)
  local parents = waits or options.depends and lines_of(options.depends) or NONE
  local why = #parents > 0 and stage.why_not(rec or { jid = jid }, parents)
  if why then return nil, why end
  if rec then
    moves.take_away(rec)
    if verb ~= "move" then forget_starts(rec) end
    if rec.unique and rec.unique ~= unique then claims.release(rec) end
    rec.progress = nil
    drop(P .. "failure:" .. jid)
    drop(P .. "result:" .. jid)
    if verb ~= "move" and rec.kin then drop(P .. "readers:" .. jid) end
    drop(P .. "progress:" .. jid)
  else
    rec = create_job(jid)
  end
  local had_date = rec.expires
  if options ~= NONE then choose(rec, options) end
  rec.unique = unique
  if options.batch then batches.join(rec, options.batch) end
  if had_date and not rec.expires then place(P .. "expiring", jid, false) end
  stage.begin(rec, queue)
  if verb ~= "move" then
    rec.klass = klass
    stage.set_data(rec, kind, data)
    if options.mode or rec.mode then due = modes.begin(rec, options.mode, due) end
  end
  if verb ~= "move" and not waits then results.set_parents(rec, parents) end
  if options.tags then tagging.set(rec, lines_of(options.tags)) end
  if rec.tracked or has_listeners() then publish_job_event("job.put", rec) end
  stage.lay_down(rec, due, parents)
  return 1
end

-- Return verb, queue, jid, klass, kind, data, time and options of the put that begins at `at`, and where the next one
-- begins. A short put has all but jid and data in its first argument, a line each; "": as the put before it.
local head_at
local function read_put(at)
  if ARGV[at] ~= "" then head_at = at end
  local verb, queue, klass, kind, letters = string.match(ARGV[head_at], "^(%l+)\n([^\n]+)\n([^\n]+)\n([jb])\n([^\n]*)$")
  if verb then
    local options = NONE
    for letter, value in string.gmatch(letters, "(%l)(%S+)") do
      options = options == NONE and {} or options
      options[dense.NAMES[letter]] = value
    end
    return { verb, queue, ARGV[at + 1], klass, kind == "b" and "bytes" or "json", ARGV[at + 2], nil, options }, at + 3
  end
  local put, n = { unpack(ARGV, at, at + 5) }, ARGV[at + 8]
  put[7], put[8] = tonumber(ARGV[at + 7]) or tonumber(ARGV[at + 6]) and now + ARGV[at + 6], read_options(at + 9, n)
  return put, at + 9 + 2 * n
end

-- Return queue, jid and options of the put that begins at `at`, and where the next one begins.
function stage.options_of(at)
  local put, after = read_put(at)
  return put[2], put[3], put[8], after
end

-- Return what a script stores of the put that begins at `at`, to carry it out later; and where the next one begins.
function stage.later_put(at)
  local put, after = read_put(at)
  stage.check_room(put[2])
  stage.know_queue(put[2])
  return { queue = put[2], jid = put[3], klass = put[4], kind = put[5], data = put[6], options = put[8] }, after
end

-- Carry out one put, add or move of the arguments. Return as put() does, and where the next one begins. `follows`: a
-- job puts it with its completion, which may be into its own batch.
function stage.put_one(at, follows)
  local put, after = read_put(at)
  stage.check_room(put[2])
  local options = put[8]
  if options.batch and not follows then batches.check_open(options.batch) end
  if options.depends and options.depends ~= "" and not options.policy then -- entries of other programs wait
    local rec = read_job(put[3])
    if not (rec and (rec.parents or rec.state == "depends")) then options.policy = "fail" end
  end
  local answer, why = stage.put(unpack(put, 1, 8))
  if not answer then refuse("DEPENDENCY", why) end
  return answer, after
end
