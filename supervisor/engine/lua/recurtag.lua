#!lua flags=allow-oom
-- recurtag.lua — add tags to the later jobs of a recurrence, or remove them. Its earlier jobs keep theirs.
--
-- Called by: recurrences.tag, recurrences.untag (supervisor/engine/commands/recurrences.py)
-- Holds:     INV-12 at most 100 tags a job
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   "add" or "remove"
-- ARGV[3]   jid of the recurrence
-- ARGV[4]   name of the actor; "" = unknown
-- ARGV[5..] tags
--
-- Returns   array of the recurrence's tags now, or nil if there is none of this jid.
-- Errors    REFUSED if there would be more than 100. WRONGTYPE for a foreign key of ours. Nothing has changed then.

--- @include this_layout
--- @include clock
--- @include recurrence
--- @include retag
--- @include acts
local jid = ARGV[3]
local key, of_tags = P .. "recur:" .. jid, P .. "recurtags:" .. jid
local pattern = recurrence.read(jid)
if not pattern then return false end
local before = pattern.tagged and lines_of(redis.call("GET", of_tags) or "") or {}
local kept = retagged(before, "recurring job " .. jid)
if #kept > 0 then
  store(of_tags, table.concat(kept, "\n"))
  set_fields({ key, "tagged", 1 })
else
  drop(of_tags)
  del_fields({ key, "tagged" })
end
acts.note(ARGV[4], ARGV[2] == "add" and "tag" or "untag", "recurrence", { jid }, "", table.concat(ARGV, " ", 5))
commit()
return kept
