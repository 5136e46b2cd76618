#!lua flags=no-writes
-- recurring.lua — one recurring job, or a page of those of a queue.
--
-- Called by: recurrences.read, recurrences.in_queue (supervisor/engine/commands/recurrences.py)
-- Holds:     nothing is written
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   queue; "" = that of the jid
-- ARGV[2]   jid | ""
-- ARGV[3]   offset: number of the queue's recurrences to skip
-- ARGV[4]   count, the most recurrences to return
--
-- Returns   array of recurring jobs, the next due first, each an array: jid, next time in ms, data, or its size if it
--           exceeds 64 KiB or the reply 1 MiB, tags joined by "\n" | nil, then the record's fields and values.
-- Errors    WRONGTYPE for a foreign key of ours.

--- @include this_layout
--- @include keys
--- @include shown
local queue, offset, count, answer = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4]), {}
local jids = { ARGV[2] }
if queue ~= "" then
  jids = count > 0 and redis.call("ZRANGE", queue_key(queue, "recurring"), offset, offset + count - 1) or {}
end
for _, jid in ipairs(jids) do
  local key = P .. "recur:" .. jid
  local flat = redis.call("HGETALL", key)
  if #flat > 0 then
    local tags = redis.call("MGET", P .. "recurtags:" .. jid)[1]
    local at = tonumber(redis.call("HGET", key, "next") or 0)
    answer[#answer + 1] = { jid, at, text_of(P .. "recurdata:" .. jid, SHOWN), tags, unpack(flat) }
  end
end
return answer
