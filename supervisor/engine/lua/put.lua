#!lua
-- put.lua — create jobs, or move known ones from wherever they are; all of the batch or none.
--
-- Called by: putting.put (supervisor/engine/commands/putting.py)
-- Holds:     INV-1 a job lies in exactly one place; INV-3 a put begins a new stage, and its worker has lost the lease
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2..] per job, in short: verb, queue, klass, kind of data ("j" = JSON or "b" = bytes) and options, a line each,
--           or "" for those of the job before it; jid; data. Verb: "put" (create or move) or "add" (only create).
--           Options, by letter and value, a space between: p = priority, r = retries, t = timeout in ms,
--           d = max_deaths, c = trace.
--           Or, for any options: verb, queue, jid, klass, kind of data ("json" or "bytes"), data, delay in ms | "",
--           time in unix ms | "", number of options, then that many times an option's field and value; tags and depends
--           a line each
--
-- Returns   array, one per job: 1 (done), 0 (add of a known jid or of a claim that is held: nothing changed), or the
--           jid of the job that holds the claim of a put: nothing changed.
-- Errors    DEPENDENCY if a job would wait for itself, or if known jobs before the last have waited for 5,000 or more
--           others; REFUSED for a new queue above 100,000, if those lose 5,000 or more tags, or for a batch that is
--           unknown or closed. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include this_layout
--- @include clock
--- @include quick_put
--- @include stage
local answers, at = {}, 2
while at <= #ARGV do
  answers[#answers + 1], at = stage.put_one(at)
  if at <= #ARGV and edges.is_spent() then
    refuse("DEPENDENCY", "the first of these jobs wait for too many others: put fewer of them at a time")
  end
  if at <= #ARGV and tagging.is_spent() then
    refuse("REFUSED", "the first of these jobs lose too many tags: put fewer of them at a time")
  end
end
commit()
return answers
