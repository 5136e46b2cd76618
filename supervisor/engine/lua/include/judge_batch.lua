-- judge_batch.lua: judges batches: their numbers, their lists, and those whose block nobody leaves any more.
--- @include judge
do -- a script has at most 200 locals outside of blocks
--- @include open_batches
  local NUMBERS = { "total", "complete", "failed", "cancelled", "opened", "closed", "ended", "depth", "looked" }

  local function ended_members(name)
    local n = 0
    for _, state in ipairs({ "complete", "failed", "cancelled" }) do n = n + (whole(value_in(name, state)) or 0) end
    return n
  end

  -- The next sweep looks whether a batch of score 0 has ended.
  local function have_looked_at(id)
    if score_in("batches", id) ~= 0 then place(P .. "batches", id, 0) end
  end

  local function unset_foreign(name)
    for _, field in ipairs(NUMBERS) do
      local value = value_in(name, field)
      if value and not whole(value) then
        report("foreign-value", name, "has " .. field .. " " .. value .. ", which cannot be", "unset it")
        set_value(name, field, nil)
      end
    end
  end

  function judge.batch(name, id)
    unset_foreign(name)
    local wanted = ended_members(name) + size_after("batchjobs:" .. id)
    if whole(value_in(name, "total")) ~= wanted then
      report("wrong-count", name, "does not say that it has " .. wanted .. " members", "wrote it")
      set_value(name, "total", text_of(wanted))
      have_looked_at(id)
    end
    if not score_in("batches", id) and not score_in("batches-ended", id) then
      report("unlisted-batch", id, "is not among the batches", "listed it")
      have_looked_at(id)
    end
  end

  function judge.open_batch(name, id)
    local batch = "batch:" .. id
    if not is_there(batch, "hash") then
      report("orphan", id, "is in " .. name .. ", but there is no such batch", "took it out")
      move_in(name, id, nil)
    elseif score_in(name, id) <= now - OPEN_FOR_LONG then
      report("open-batch", id, "was opened more than an hour ago, and was not closed", "closed it")
      if not value_in(batch, "closed") then set_value(batch, "closed", text_of(now)) end
      move_in(name, id, nil)
      have_looked_at(id)
    end
  end

  -- A client of an earlier release has put a failed member back.
  local function count_back(rec)
    local name, failed = "batch:" .. rec.batch, "batchfailed:" .. rec.batch
    if not score_in(failed, rec.jid) then return end
    move_in(failed, rec.jid, nil)
    set_value(name, "failed", text_of(math.max((whole(value_in(name, "failed")) or 0) - 1, 0)))
    have_looked_at(rec.batch)
  end

  -- A job that has not ended is among the members of its batch.
  function judge.membership(rec)
    if is_over(rec) or not is_there("batch:" .. rec.batch, "hash") then return end
    local opened = whole(value_in("batch:" .. rec.batch, "opened"))
    if opened and (tonumber(rec.put) or 0) < opened then return end -- of an earlier batch of this id
    local name = "batchjobs:" .. rec.batch
    if score_in(name, rec.jid) then return end
    report("uncounted-member", rec.jid, "has not ended, and is not in " .. name, "put it there")
    move_in(name, rec.jid, now)
    count_back(rec)
  end
end
