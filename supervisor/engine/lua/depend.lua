#!lua flags=allow-oom
-- depend.lua — change what a job waits for. A job without dependencies left goes where its put would have placed it.
--
-- Called by: job_changes.depend, job_changes.undepend (supervisor/engine/commands/job_changes.py)
-- Holds:     INV-1 a job lies in exactly one place
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   jid
-- ARGV[3]   "on" (add these), "off" (remove these) or "all" (remove all)
-- ARGV[4]   name of the actor; "" = unknown
-- ARGV[5..] jids
--
-- Returns   1, or 0 if there is no such job.
-- Errors    DEPENDENCY if the job is not in state depends, or would wait for itself. WRONGTYPE for a foreign key of
--           ours. Nothing has changed then.

--- @include this_layout
--- @include clock
--- @include stage
--- @include acts
local rec, how, given = read_job(ARGV[2]), ARGV[3], {}

-- Return the lines of the first list that are not in the second one.
local function without(lines, others)
  local is_other, kept = {}, {}
  for _, line in ipairs(others) do is_other[line] = true end
  for _, line in ipairs(lines) do
    if not is_other[line] then kept[#kept + 1] = line end
  end
  return kept
end

if not rec then return 0 end
if rec.state ~= "depends" then
  refuse("DEPENDENCY", "job " .. rec.jid .. " is not in state depends but " .. (rec.state or "waiting"))
end
for i = 5, #ARGV do given[#given + 1] = ARGV[i] end

if how == "on" then
  local why = stage.why_not(rec, given) or edges.why_too_many(rec.jid, #given, #edges.parents_of(rec.jid))
  if why then refuse("DEPENDENCY", why) end
  local unmet, ended, fatal = stage.sort_parents(rec, given)
  if fatal then kin.fail_with_parent(rec, fatal, "has failed") end
  if not fatal then stage.bind(rec, unmet, ended) end
  local parents = results.parents_of(rec)
  for _, parent in ipairs(without(given, parents)) do parents[#parents + 1] = parent end
  results.set_parents(rec, parents)
else
  local mine = {}
  local parents = edges.parents_of(rec.jid)
  for _, parent in ipairs(parents) do mine[parent] = true end
  given = how == "all" and parents or given
  results.set_parents(rec, without(results.parents_of(rec), given))
  for _, parent in ipairs(given) do
    if mine[parent] and rec.state == "depends" then kin.satisfy(rec, parent) end
    mine[parent] = nil
  end
end
local some = how == "all" and how or table.concat(given, " ", 1, math.min(#given, 10))
acts.note(ARGV[4], how == "on" and "depend" or "undepend", "job", { rec.jid }, "", some)
commit()
return 1
