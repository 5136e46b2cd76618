-- served.lua: which of its queues a lease looks at. A queue is quiet if nothing lies in it but what is to come at a
-- known time. A lease of many queues notes that, and the next one passes over the quiet ones until that time. All that
-- brings a job or an earlier time into a queue sets its wake-up key, and with it ends its quiet; but for a push to
-- `in:<q>`.
--- @include clock
--- @include prefix
--- @include leased
local MANY_QUEUES = 4 -- to look at so many costs little
local NEVER = 2 ^ 53
local are_many = #ARGV > 11 + 2 * MANY_QUEUES

-- The queues to look at, in the order of the arguments; the place of each among all queues; and when the first job of a
-- quiet one comes.
local served, places, first_of_quiet = {}, {}, math.huge
for at = 12, #ARGV, 2 do
  served[#served + 1], places[#places + 1] = ARGV[at], #places + 1
end
if are_many then
  local all, never = served, string.format("%.0f", NEVER)
  local quiet, entries = redis.call("ZMSCORE", P .. "quiet", unpack(all)), {}
  for i, queue in ipairs(all) do entries[i] = P .. "in:" .. queue end
  local has_entries = redis.call("EXISTS", unpack(entries)) > 0
  --   A worker that was woken may have to tell others of what comes soon.
  local horizon = ARGV[10] == "" and now or now + LONGEST_WAIT
  served, places = {}, {}
  for i, score in ipairs(quiet) do
    local time = score and (score == never and NEVER or tonumber(score)) or 0
    if time <= horizon or has_entries and redis.call("EXISTS", entries[i]) == 1 then
      served[#served + 1], places[#places + 1] = all[i], i
    elseif time < first_of_quiet and time < NEVER then
      first_of_quiet = time
    end
  end
end
