#!lua flags=no-writes
-- find.lua — the ids of the jobs that match a choice, from a cursor on.
--
-- Called by: choices.find (supervisor/engine/commands/choices.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   places of a queue to look through, with commas between: front, waiting, lanes, scheduled, apart, parked,
--           depends, running. Without a queue in the choice those of all queues, queue by queue
-- ARGV[3]   places to look through after these: batchjobs, batchfailed, group, tag, failed, complete; from the end if
--           a "-" precedes
-- ARGV[4]   cursor, "" = from the beginning: the lines queue, first put of the queue, place, walk, lane, score, member.
--           walk is where in the lanes: "turns" or "paused", and the cursor of ZSCAN or HSCAN
-- ARGV[5]   choice, as in include/chosen.lua
-- ARGV[6]   count, the most jobs to return, 1 to 1000
--
-- Returns   array: number of jobs in the places, -1 for those of all queues; how many this call has looked at; cursor
--           of the next call, "" at the end; then jid, state, jid, state … A cursor names the last job that was looked
--           at by its score and member, so that jobs that leave their place shift nothing. A job that gets another
--           score meanwhile may come twice, or not at all. So may the jobs of a lane that is paused or unpaused, or
--           while hundreds of lanes come or go. Up to some hundred lanes come in the order of their names, more of
--           them in an order of Redis' own.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include clock
--- @include lanes
--- @include lanes
--- @include chosen
--- @include ranks
--- @include stored
local STEP = 1000 -- jobs and places that a call looks at
local AT_ONCE = 100 -- jobs of one read
local FIELDS = { "queue", "state", "parked", "group", "seq", "klass", "lane", "batch", "put" }
local choice, count = choice_in(ARGV[5]), tonumber(ARGV[6])
local cursor = { string.match(ARGV[4], "^" .. string.rep("([^\n]*)\n", 6) .. "(.*)$") }
local from = { queue = cursor[1], first_put = cursor[2], place = cursor[3], walk = cursor[4], lane = cursor[5] }
local score, member = cursor[6], cursor[7]
local is_at_cursor = ARGV[4] == "" -- places before the one that the cursor names are skipped
local left, looked, stopped_at = STEP, 0, ""
local answer = { 0, 0, "" }

local function words_of(text)
  local words = {}
  for word in string.gmatch(text, "[^,]+") do words[#words + 1] = word end
  return words
end

local of_queues, others = words_of(ARGV[2]), words_of(ARGV[3])

local function key_of(place)
  if place.queue == "" then
    local of = { tag = choice.tag, group = choice.group, batchjobs = choice.batch, batchfailed = choice.batch }
    local name = place.name == "group" and "failed" or place.name
    return P .. (of[place.name] and name .. ":" .. of[place.name] or name)
  end
  return place.name == "lanes" and lanes.line(place.queue, place.lane) or queue_key(place.queue, place.name)
end

-- Return from which rank on, and before which one, jobs of a place may match: their states change with the time.
local function bounds_of(name, key)
  local size = redis.call("ZCARD", key)
  local early = ({ scheduled = "waiting", running = "stalled" })[name]
  if not early then return 0, size end
  local passed = redis.call("ZCOUNT", key, "-inf", now)
  return wants(choice, early) and 0 or passed, wants(choice, name) and size or passed
end

local function stop(place, at_score, at_member)
  local at = { place.queue, place.first_put, place.word, place.walk, place.lane, at_score, at_member }
  stopped_at = table.concat(at, "\n")
end

-- Examine some members with their scores. Return whether there is room for further jobs.
local function examine(place, members)
  local jids = {}
  for i = 1, #members, 2 do
    local has_number = place.name == "waiting" or place.name == "lanes" or place.name == "scheduled"
    jids[#jids + 1] = has_number and string.sub(members[i], 14) or members[i]
  end
  for i, values in ipairs(peek(jids, unpack(FIELDS))) do
    local rec = { jid = jids[i] }
    for n, field in ipairs(FIELDS) do rec[field] = values[n] or nil end
    looked, left = looked + 1, left - 1
    local state = rec.queue and chosen_as(rec, choice)
    if state then
      answer[#answer + 1], answer[#answer + 2] = jids[i], state
      if #answer == 3 + 2 * count then
        stop(place, members[2 * i], members[2 * i - 1])
        return false
      end
    end
  end
  return true
end

-- Look through a place, behind the cursor if it is in there.
local function look_through(place, is_resumed)
  if left <= 0 then
    stop(place, "", "")
    return
  end
  left = left - 1
  local key = key_of(place)
  local at, last = bounds_of(place.name, key)
  if is_resumed and score ~= "" and place.is_backward then
    at = math.max(at, redis.call("ZCARD", key) - rank_of(key, score, member))
  elseif is_resumed and score ~= "" then
    at = math.max(at, rank_of(key, score, member, true))
  end
  local at_score, at_member = is_resumed and score or "", is_resumed and member or ""
  while at < last do
    if left <= 0 then
      stop(place, at_score, at_member)
      return
    end
    local size = math.min(AT_ONCE, left, last - at)
    local command = place.is_backward and "ZREVRANGE" or "ZRANGE"
    local members = redis.call(command, key, at, at + size - 1, "WITHSCORES")
    if not examine(place, members) then return end
    at_member, at_score = members[#members - 1], members[#members]
    at = at + size
  end
end

-- Return some lanes of a queue by name, and where the walk goes on, "" at the end: first through the lanes that have
-- turns, then through those that have none because they are paused. What is there all the while comes once.
local function some_lanes(queue, walk)
  local index, names = lanes.index(queue), {}
  local part, at = string.match(walk, "^(%l+)(%d+)$")
  local is_of_turns = part == "turns"
  local found = is_of_turns and redis.call("ZSCAN", index, at, "COUNT", 1)
    or redis.call("HSCAN", P .. "lanes:" .. queue, at, "COUNT", 1)
  for i = 1, #found[2], 2 do
    local lane = is_of_turns and found[2][i] or string.match(found[2][i], "^paused:(.+)$")
    if lane and lane ~= "" and (is_of_turns or not redis.call("ZSCORE", index, lane)) then names[#names + 1] = lane end
  end
  table.sort(names)
  return names, found[1] ~= "0" and part .. found[1] or is_of_turns and "paused0" or ""
end

-- Look through the lines of all lanes of a queue, behind the cursor if it is in one of them.
local function look_through_lanes(place, is_resumed)
  place.walk = is_resumed and from.walk ~= "" and from.walk or "turns0"
  local first = is_resumed and from.lane or ""
  while place.walk ~= "" do
    place.lane = ""
    if left <= 0 then
      stop(place, "", "")
      return
    end
    local names, further = some_lanes(place.queue, place.walk)
    if #names == 0 then left = left - 1 end
    for _, lane in ipairs(names) do
      if not (lane < first) then
        place.lane = lane
        look_through(place, is_resumed and lane == from.lane)
        if stopped_at ~= "" then return end
      end
    end
    place.walk, first = further, ""
  end
end

local function visit(words, queue, first_put)
  for _, word in ipairs(words) do
    local is_resumed = not is_at_cursor and word == from.place
    if is_at_cursor or is_resumed then
      is_at_cursor = true
      local sign, name = string.match(word, "^(-?)(.*)$")
      local place = {
        queue = queue, first_put = first_put, word = word, name = name, walk = "", is_backward = sign == "-",
        lane = name == "lanes" and choice.lane or "",
      }
      local look = name == "lanes" and not choice.lane and look_through_lanes or look_through
      look(place, is_resumed)
      if stopped_at ~= "" then return end
    end
  end
end

local function visit_all_queues()
  local key = P .. "queues"
  local rank = (is_at_cursor or from.first_put == "") and 0 or rank_of(key, from.first_put, from.queue)
  while stopped_at == "" do
    local known = redis.call("ZRANGE", key, rank, rank + AT_ONCE - 1, "WITHSCORES")
    for i = 1, #known, 2 do
      --   The queue of the cursor may have been forgotten.
      if known[i] ~= from.queue then is_at_cursor = true end
      visit(of_queues, known[i], known[i + 1])
      if stopped_at ~= "" then return end
    end
    if #known < 2 * AT_ONCE then
      is_at_cursor = true
      return
    end
    rank = rank + AT_ONCE
  end
end

local function size_of_places()
  local sum = 0
  for _, word in ipairs(others) do
    sum = sum + redis.call("ZCARD", key_of({ queue = "", name = string.match(word, "^-?(.*)$") }))
  end
  if #of_queues > 0 and not choice.queue then return -1 end
  for _, name in ipairs(of_queues) do
    if name == "lanes" and not choice.lane then
      sum = sum + tonumber(redis.call("GET", P .. "laned:" .. choice.queue) or 0)
    else
      local first, last = bounds_of(name, key_of({ queue = choice.queue, name = name, lane = choice.lane }))
      sum = sum + last - first
    end
  end
  return sum
end

if #of_queues > 0 and (is_at_cursor or from.queue ~= "") then
  if choice.queue then visit(of_queues, choice.queue, "") else visit_all_queues() end
end
if stopped_at == "" then visit(others, "", "") end
answer[1], answer[2], answer[3] = size_of_places(), looked, stopped_at
return answer
