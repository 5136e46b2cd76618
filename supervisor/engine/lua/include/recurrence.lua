-- recurrence.lua: recurring jobs: recur:<jid> is the pattern from which each due time makes one job.
--- @module
--- @include stage
local PROMPT = 60000 -- a time that is not later than this was not missed

function recurrence.key(queue) return queue_key(queue, "recurring") end

function recurrence.read(jid)
  local pattern = read_fields(P .. "recur:" .. jid)
  if pattern then pattern.jid = jid end
  return pattern
end

-- Return the arguments of a new or changed pattern, which begin at an index with its queue; `fields` are pairs.
function recurrence.given(argv, at)
  local given = {
    queue = argv[at], jid = argv[at + 1], klass = argv[at + 2], kind = argv[at + 3], data = argv[at + 4],
    delay = argv[at + 5], first = argv[at + 6], fields = {},
  }
  for i = at + 8, at + 7 + 2 * argv[at + 7], 2 do
    if argv[i] == "tags" then given.tags = argv[i + 1] else given.fields[argv[i]] = argv[i + 1] end
  end
  return given
end

-- Give a pattern what was given. An empty value unsets a field.
function recurrence.apply(pattern, given)
  if given.queue ~= "" then pattern.queue = given.queue end
  if given.klass ~= "" then pattern.klass = given.klass end
  for field, value in pairs(given.fields) do pattern[field] = value ~= "" and value or nil end
end

-- Store a pattern in place of the one `before`. `is_new`: without tags it has none.
function recurrence.write(before, pattern, given, is_new)
  local name, jid = P .. "recur:" .. pattern.jid, pattern.jid
  if before then place(recurrence.key(before.queue), jid, false) end
  place(recurrence.key(pattern.queue), jid, pattern.next)
  if given.kind ~= "" then
    pattern.bytes = given.kind == "bytes" and 1 or nil
    store(P .. "recurdata:" .. jid, given.data)
  end
  if given.tags or is_new then
    pattern.tagged = given.tags and given.tags ~= "" and 1 or nil
    if pattern.tagged then store(P .. "recurtags:" .. jid, given.tags) else drop(P .. "recurtags:" .. jid) end
  end
  plan_fields(name, pattern, before and read_fields(name) or {})
  stage.check_room(pattern.queue)
  stage.know_queue(pattern.queue)
  wake(pattern.queue)
end

-- If an earlier recurrence of this jid has used the number, a sequence is a number that it cannot have used.
-- One of several shards needs jobs whose jids have the key of the recurrence.
local function fresh_jid(pattern)
  pattern.count = (tonumber(pattern.count) or 0) + 1
  local is_keyed = not layout.shards or string.find(pattern.jid, "{[^}]+}")
  local stem = is_keyed and pattern.jid or "{" .. pattern.jid .. "}"
  local jid = stem .. "-" .. digits(pattern.count)
  if not read_job(jid) then return jid end
  return stage.free_jid(stem .. "-" .. digits(next_seq()))
end

-- Put one job of a recurrence, as if at its time. Return it; nothing if another job has its claim.
function recurrence.spawn(pattern, when)
  pattern.data = pattern.data or redis.call("GET", P .. "recurdata:" .. pattern.jid) or ""
  local unique = claims.key(pattern.unique, pattern.data)
  if unique and claims.holder(pattern.queue, unique) then return nil end
  local rec = create_job(fresh_jid(pattern))
  for _, option in ipairs(stage.OPTIONS) do rec[option] = pattern[option] end
  rec.klass, rec.spawned, rec.unique = pattern.klass, pattern.jid, unique
  stage.begin(rec, pattern.queue, when)
  stage.set_data(rec, pattern.bytes and "bytes" or "json", pattern.data)
  if pattern.tagged then
    pattern.tags = pattern.tags or redis.call("GET", P .. "recurtags:" .. pattern.jid)
    tagging.set(rec, lines_of(pattern.tags))
  end
  publish_job_event("job.put", rec)
  moves.to_waiting(rec)
  return rec
end

function recurrence.set_next(pattern, at)
  pattern.next = at
  set_fields({ P .. "recur:" .. pattern.jid, "next", at, "count", tonumber(pattern.count) or 0 })
  place(recurrence.key(pattern.queue), pattern.jid, at)
end

function recurrence.finish(pattern)
  place(recurrence.key(pattern.queue), pattern.jid, false)
  drop(P .. "recur:" .. pattern.jid)
  drop(P .. "recurdata:" .. pattern.jid)
  drop(P .. "recurtags:" .. pattern.jid)
end

-- Return the first of the due times that get a job under its policy, and how many follow it.
local function times_to_run(pattern, every)
  local first = tonumber(pattern.next)
  local n = math.floor((now - first) / every) + 1
  local last, backlog = first + (n - 1) * every, tonumber(pattern.backlog)
  if not backlog then return first, n end
  if backlog < 0 then return last, now - last <= math.min(PROMPT, every) and 1 or 0 end
  return math.max(first, last - backlog * every), math.min(n, backlog + 1)
end

-- Return how many times it has taken, and whether those were all.
local function spawn_interval(pattern, most)
  local every = tonumber(pattern.every)
  local first, n = times_to_run(pattern, every)
  local taken = math.min(n, most)
  for i = 0, taken - 1 do recurrence.spawn(pattern, first + i * every) end
  local following = tonumber(pattern.next) + (math.floor((now - tonumber(pattern.next)) / every) + 1) * every
  recurrence.set_next(pattern, taken < n and first + taken * every or following)
  return taken, taken == n
end

-- Put the jobs of up to `limit` times of the due recurrences of a queue. Return whether there are more, and how many
-- there were. Cron patterns are only added to `due_crons`: workers compute their times.
function recurrence.spawn_due(queue, limit, due_crons)
  local key, left, more = recurrence.key(queue), limit, false
  local ids = redis.call("ZRANGEBYSCORE", key, "-inf", now, "LIMIT", 0, 1000)
  for _, jid in ipairs(ids) do
    local pattern = recurrence.read(jid)
    if not pattern or pattern.queue ~= queue then
      moves.phantom(key, jid, jid)
    elseif pattern.cron then
      due_crons[#due_crons + 1] = { jid, pattern.cron, pattern.tz or "", tonumber(pattern.next), pattern.backlog or "" }
    elseif left <= 0 then
      more = true
    else
      local taken, done = spawn_interval(pattern, left)
      left, more = left - taken, more or not done
    end
  end
  return more, limit - left
end
