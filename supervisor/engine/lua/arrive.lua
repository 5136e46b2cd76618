#!lua
-- arrive.lua — store what is to come from the first shard, out of the sight of all other scripts.
--
-- Called by: resharding.arrive, resharding.arrive_piece (supervisor/engine/commands/resharding.py)
-- Holds:     what arrives again replaces what arrived before
--
-- KEYS[1]   prefix of the shard
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   number of the pass
-- ARGV[3..] for each thing: its kind and name; "", the number of its parts and these; or the name of a large string of
--           it, how many bytes of that have come, and the next ones
--
-- Returns   array: 1 for each thing; 0 if there is one of this name already, or another job holds its unique key.
-- Errors    REFUSED unless the pass is the present one. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include resharding
--- @include clock
--- @include plan
--- @include parcel
local MOST = 1000000 -- parts of a thing
local answers, at = {}, 3

local function is_taken(name, parts)
  local taken = not string.find(name, "^memory:") and redis.call("EXISTS", P .. name) == 1
  parcel.each(parts, 1, {
    f = function(hash, field)
      taken = taken or string.find(hash, "^unique:") and redis.call("HEXISTS", P .. hash, field[1]) == 1
    end,
  })
  return taken
end

while at <= #ARGV do
  local name, large = ARGV[at], ARGV[at + 1]
  local key = P .. "arriving:" .. (large == "" and name or large)
  if large ~= "" then
    redis.call("STRLEN", key)
    if ARGV[at + 2] == "0" then drop(key) end
    overwrite(key, tonumber(ARGV[at + 2]), ARGV[at + 3])
    answers[#answers + 1], at = 1, at + 4
  else
    local n, parts = tonumber(ARGV[at + 2]), {}
    for i = 1, n do parts[i] = ARGV[at + 2 + i] end
    answers[#answers + 1], at = is_taken(name, parts) and 0 or 1, at + 3 + n
    if answers[#answers] == 1 then
      drop(key)
      for _, text in ipairs(parts) do push(key, text, MOST) end
    end
  end
  if answers[#answers] == 1 then place(P .. "arriving", name, now) end
end
commit()
return answers
