-- streams.lua: what handlers stream. Each entry of stream:<jid> has one or more chunks, as children pack them. Its id
-- is <bytes>-<chunks>, both counted from the beginning of the stream to the end of the entry. So a reader knows the
-- position of every chunk, and the oldest entries go by their ids.
--- @module
--- @include record
--- @include digits
local MOST_BYTES = 4194304 -- of one stream: the oldest chunks go
local HEAD_BYTES, COST_BYTES = 5, 64 -- of each chunk: its head where it is packed, and what it counts beside its data
local UNENDED_MS = 604800000 -- after the last chunk; a worker of an earlier release does not end the stream
local KEPT_MS = 3600000 -- after the end of the job

local function key_of(rec) return P .. "stream:" .. rec.jid end

-- Return the end of a stream in bytes and in chunks, and of these the number that a lease has streamed.
local function ends_of(rec, token)
  local bytes, chunks, of, count = string.match(rec.streamed or "", "^(%d+)-(%d+) (%d+) (%d+)$")
  return tonumber(bytes) or 0, tonumber(chunks) or 0, of == token and tonumber(count) or 0
end

-- A foreign key in its place stays as it is: no job waits for a check.
local function plan_entry(rec, bytes, chunks, ttl, ...)
  if type(redis.pcall("XLEN", key_of(rec))) ~= "number" then return end
  local from = digits(math.max(0, bytes - MOST_BYTES)) .. "-0"
  append(key_of(rec), { digits(bytes) .. "-" .. digits(chunks), ... }, from, ttl)
end

-- Let a job have its end told to readers, also if nothing is ever streamed. A stream may outlive its job, by an hour:
-- drop what an earlier job of this jid has left.
function streams.begin(rec)
  if rec.streamed then return end
  local length = redis.pcall("XLEN", key_of(rec))
  if type(length) == "number" and length > 0 then drop(key_of(rec)) end
  rec.streamed = "0-0 0 0"
end

-- Return where a stream ends, as an id.
function streams.position(rec) return string.match(rec.streamed or "", "^%d+%-%d+") or "0-0" end

-- Append `n` packed chunks of a lease. `before`: how many it has streamed earlier, if they may be sent again; what was
-- appended already is not appended again.
function streams.add(rec, token, before, n, packed)
  streams.begin(rec)
  local bytes, chunks, count = ends_of(rec, token)
  if before and before < count then return end
  bytes, chunks = bytes + #packed + n * (COST_BYTES - HEAD_BYTES), chunks + n
  rec.streamed = digits(bytes) .. "-" .. digits(chunks) .. " " .. token .. " " .. digits((before or count) + n)
  local attempt = 1 + (rec.failures or 0) + (rec.deaths or 0) + (rec.interruptions or 0)
  plan_entry(rec, bytes, chunks, UNENDED_MS, "attempt", digits(attempt), "chunks", packed)
end

-- The job has ended: tell its readers. Of a cancelled job nothing else is kept.
function streams.finish(rec, state)
  local bytes, chunks = ends_of(rec)
  if state == "cancelled" then drop(key_of(rec)) end
  plan_entry(rec, bytes + 1, chunks, KEPT_MS, "end", state)
end

-- A job that had ended begins anew.
function streams.forget(rec)
  drop(key_of(rec))
  rec.streamed = nil
end
