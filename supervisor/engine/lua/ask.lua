#!lua flags=allow-oom
-- ask.lua — send a request to running workers. It stands until the worker answers, or until it expires.
--
-- Called by: mailbox.ask (supervisor/engine/commands/mailbox.py)
-- Holds:     a hint may be lost, a request is not; INV-12 the 100 newest of each worker, until the last one expires
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   id of the request
-- ARGV[3]   what is asked for, one word
-- ARGV[4]   argument as JSON | ""
-- ARGV[5]   for how long the request stands, ms
-- ARGV[6]   name of the actor; "" = unknown
-- ARGV[7..] workers; none = all live ones: those that leased or renewed in the last minute, or hold a lease
--
-- Returns   array of the workers that got the request.
-- Errors    REFUSED if a named worker is unknown; WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include events
--- @include lives
--- @include acts
local id, what, argument, stands = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local MOST = 100
local request = string.format("%d\n%s\n%s\n%s", now + stands, id, what, argument)
local asked = {}

-- Return false if no worker of this name is running: workers number their exchanges.
local function ask(worker)
  local exchange, asks = P .. "worker:" .. worker, P .. "asks:" .. worker
  local known = redis.call("HMGET", exchange, "number", "wish")
  if not known[1] then return false end
  push(asks, request, MOST, math.max(stands, redis.call("PTTL", asks)))
  set_fields({ exchange, "wish", (tonumber(known[2]) or 0) + 1 })
  hint(worker, "ask")
  asked[#asked + 1] = worker
  return true
end

for i = 7, #ARGV do
  if not ask(ARGV[i]) then
    refuse("REFUSED", "there is no worker " .. ARGV[i] .. " (any more); `leasehold status` shows who is there")
  end
end
if #ARGV < 7 then
  local seen = redis.call("ZREVRANGE", P .. "workers-seen", 0, 999, "WITHSCORES")
  for i = 1, #seen, 2 do
    if tonumber(seen[i + 1]) > now - LIVES or redis.call("ZCARD", P .. "held:" .. seen[i]) > 0 then ask(seen[i]) end
  end
end
if #asked > 0 and what ~= "status" then acts.note(ARGV[6], what, "worker", asked, "", argument) end
commit()
return asked
