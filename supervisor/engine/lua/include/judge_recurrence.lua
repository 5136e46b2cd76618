-- judge_recurrence.lua: judges a recurrence. One that can make no job is moved aside, and kept for a while.
--- @include judge
local function judge_recurring(jid)
  local recur = read_hash("recur:" .. jid)
  if not recur or judged["recur:" .. jid] then return recur end
  judged["recur:" .. jid], recur.jid = true, jid
  local timed = is_given(recur.cron) or (whole(recur.every) or 0) > 0
  local lacks = not is_given(recur.queue) and "queue" or not is_given(recur.klass) and "klass" or not timed and "times"
    or not whole(recur.next) and "next time" or not is_there("recurdata:" .. jid, "string") and "data"
  if lacks then
    local parts = { "recur:" .. jid }
    for _, name in ipairs({ "recurdata:" .. jid, "recurtags:" .. jid }) do
      if is_there(name, "string") then parts[#parts + 1] = name end
    end
    local detail = "has no " .. lacks
    urgent[#urgent + 1] = { kind = "half-written-recurrence", subject = jid, detail = detail, aside = parts }
    return recur
  end
  judge.fields(recur, "half-written-recurrence")
  local name = "queue:" .. recur.queue .. ":recurring"
  local found, due = score_in(name, jid), whole(recur.next)
  if found == due then return recur end
  report("recurrence-in-no-place", jid, "is not in " .. name .. " at its next time", "put it there")
  place(P .. name, jid, due)
  list_queue(recur.queue)
  read_and_wake(recur.queue)
  return recur
end
