-- memory.lua: what the server tells of its memory. The account may not be allowed to ask.
local function info(section)
  local told = redis.pcall("INFO", section)
  return type(told) == "string" and told
end

-- Return how many bytes the server uses and may use (0: no bound), how many keys it has evicted, and its policy for
-- that; nothing if it does not tell.
local function memory_of_server()
  local memory, stats = info("memory"), info("stats")
  if not memory or not stats then return nil end
  local function number(text, name) return tonumber(string.match(text, "\n" .. name .. ":(%d+)")) or 0 end
  return number(memory, "used_memory"), number(memory, "maxmemory"), number(stats, "evicted_keys"),
    string.match(memory, "\nmaxmemory_policy:([%l-]+)")
end
