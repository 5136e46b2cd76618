#!lua flags=allow-oom
-- tag.lua — add tags to a job, or remove them.
--
-- Called by: commands.tag, commands.untag (supervisor/engine/commands.py)
-- Holds:     INV-12 at most 100 tags a job
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   "add" or "remove"
-- ARGV[3]   jid
-- ARGV[4..] tags
--
-- Returns   array of the job's tags now, or nil if there is no such job.
-- Errors    REFUSED if there would be more than 100. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include clock
--- @include record
--- @include tagging
local rec = read_job(ARGV[3])
if not rec then return false end
local given, kept, has = {}, {}, {}
for i = 4, #ARGV do given[ARGV[i]] = true end
for _, tag in ipairs(tagging.of(rec)) do
  if ARGV[2] == "add" or not given[tag] then kept[#kept + 1] = tag end
  has[tag] = true
end
if ARGV[2] == "add" then
  for i = 4, #ARGV do
    if not has[ARGV[i]] then kept[#kept + 1] = ARGV[i] end
    has[ARGV[i]] = true
  end
end
if #kept > 100 then refuse("REFUSED", "job " .. rec.jid .. " cannot have more than 100 tags") end
tagging.set(rec, kept)
commit()
return kept
