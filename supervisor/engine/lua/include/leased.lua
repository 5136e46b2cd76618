-- leased.lua: what a lease reads of a record and returns, and how much payload a reply may have.
local FIELDS = {
  "klass", "queue", "priority", "retries", "timeout", "max_deaths", "bytes", "failures", "deaths", "interruptions",
  "state", "size", "put", "since", "special", "lane", "trace", "ready",
}
local ANSWER_BYTES = 1048576
local UNSIZED_BYTES = 1024 -- a record stores its size only above this
local LONGEST_WAIT = 30000 -- ms that a worker waits for a wake-up key before it leases by itself

local function row_of(rec)
  local row = {}
  for i, field in ipairs(FIELDS) do row[i] = rec[field] or false end
  return row
end

-- Append a job to a reply, from the fields that a lease has read.
local function add_given(jobs, jid, job, data, waited, tags, marks, saved)
  local n, rest = #jobs, false
  if job[3] or job[4] or job[5] or job[6] or job[7] or job[8] or job[9] or job[10] or job[16] or job[17]
    or tags or marks or saved then
    rest = {
      job[3], job[4], job[5], job[6], job[7], job[8], job[9], job[10], tags, job[16], marks, saved, job[17],
    }
  end
  jobs[n + 1], jobs[n + 2], jobs[n + 3], jobs[n + 4], jobs[n + 5], jobs[n + 6] = jid, job[1], job[2], data, waited, rest
end

-- Return the payloads of jobs, in their order, as `read(jids)` returns them. Large ones are not read if they are many,
-- because Redis hashes each byte that a script gets: the size stands for the payload, and the caller reads it in a
-- second round trip.
local function payloads_of(jids, jobs, read)
  local LARGE_BYTES, MANY_BYTES = 2048, 32768
  local sizes, together, near = {}, 0, {}
  for i, job in ipairs(jobs) do
    local size = job[12] and tonumber(job[12])
    if size and size > LARGE_BYTES then sizes[i], together = size, together + size end
  end
  if together <= MANY_BYTES then return read(jids) end
  for i, jid in ipairs(jids) do
    if not sizes[i] then near[#near + 1] = jid end
  end
  local payloads, found, at = {}, #near > 0 and read(near), 0
  for i = 1, #jids do
    if not sizes[i] then at = at + 1 end
    payloads[i] = sizes[i] or found[at]
  end
  return payloads
end
