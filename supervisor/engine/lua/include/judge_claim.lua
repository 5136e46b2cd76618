-- judge_claim.lua: judges what a job holds until it ends: its unique key, and its start deadline.
--- @include judge_place
local judge_claim = {}

function judge_claim.of(rec)
  return not is_over(rec) and is_given(rec.queue) and is_given(rec.unique) and rec.unique or nil
end

function judge_claim.shown(key) return string.byte(key) == 1 and "its content" or key end

function judge_claim.has(jid, queue, key)
  local rec = record_of(jid)
  return rec and rec.queue == queue and judge_claim.of(rec) == key
end

-- Take a key from a job that has no claim to it.
function judge_claim.evict(name, key, holder)
  local why = record_of(holder) and "has no claim to it" or "there is no record of it"
  report("stray-key", holder, "holds the key " .. judge_claim.shown(key) .. " of " .. name .. ", but " .. why,
    "took it from it")
  set_value(name, key, nil)
end

function judge_claim.unique(rec)
  local key, name = judge_claim.of(rec), "unique:" .. (rec.queue or "")
  local holder = key and value_in(name, key)
  if not key or holder == rec.jid then return end
  local what = "is unique by " .. judge_claim.shown(key) .. ", but "
  if holder and judge_claim.has(holder, rec.queue, key) then
    report("lost-key", rec.jid, what .. "so is " .. holder, "let it be so no more")
    change(rec, "unique", nil)
  else
    if holder then judge_claim.evict(name, key, holder) end
    report("lost-key", rec.jid, what .. "does not hold that key", "gave it the key")
    set_value(name, key, rec.jid)
  end
end

-- Return the start deadline; nil if there is none.
function judge_claim.deadline_of(rec)
  local put, within = whole(rec.put), whole(rec.expires)
  return put and within and not is_over(rec) and put + within or nil
end

-- A sweep removes a deadline that has passed, also if the job has started in time.
function judge_claim.deadline(rec)
  local time = judge_claim.deadline_of(rec)
  local listed = time and score_in("expiring", rec.jid)
  if not time or listed == time or not listed and time <= now then return end
  local detail = "must start by " .. text_of(time) .. ", but in expiring it "
  report("wrong-deadline", rec.jid, detail .. (listed and "has " .. text_of(listed) or "is not"), "set it right")
  place(P .. "expiring", rec.jid, time)
end

-- All that ends with a job.
function judge_claim.end_all(rec)
  local name = is_given(rec.queue) and is_given(rec.unique) and "unique:" .. rec.queue
  if name and value_in(name, rec.unique) == rec.jid then set_value(name, rec.unique, nil) end
  move_in("expiring", rec.jid, nil)
  local ended, waiters = "ended:" .. rec.jid, whole(rec.awaited)
  if not waiters or waiters < 1 then return end
  change(rec, "awaited", nil)
  if not is_there(ended, "list") and types[ended] ~= "none" then return end
  for _ = 1, math.min(waiters, 100) do push(P .. ended, "1", 100, 60000) end
end
