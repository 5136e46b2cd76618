-- ranks.lua: where a member lies in a sorted set, or would lie if it has left it.
-- Redis orders members by bytes, and `<` of Lua by the server's locale.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local of_a, of_b = string.byte(a, i), string.byte(b, i)
    if of_a ~= of_b then return of_a < of_b end
  end
  return #a < #b
end

-- Return how many members lie before this score and member; with `is_with` the member itself counts, too.
local function rank_of(key, score, member, is_with)
  local first = redis.call("ZCOUNT", key, "-inf", "(" .. score)
  local last = redis.call("ZCOUNT", key, "-inf", score)
  while first < last do
    local middle = math.floor((first + last) / 2)
    local found = redis.call("ZRANGE", key, middle, middle)[1]
    if is_before(found, member) or is_with and found == member then first = middle + 1 else last = middle end
  end
  return first
end
