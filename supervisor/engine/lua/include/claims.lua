-- claims.lua: unique jobs. A job that has not ended may hold a key of its queue, which no other job has then.
--- @module
--- @include clock
--- @include record
local planned = {} -- queue -> key -> jid | false

function claims.holder(queue, key)
  local of_queue = planned[queue] or {}
  planned[queue] = of_queue
  if of_queue[key] == nil then of_queue[key] = redis.call("HGET", P .. "unique:" .. queue, key) end
  return of_queue[key] or nil
end

-- Return the key of an option: ":" and a key, "=" and a digest of klass and data, or "1" for an entry, whose bytes are
-- compared. A key by content begins with a control character, as no name does.
function claims.key(option, data)
  local sort, rest = string.sub(option or "", 1, 1), string.sub(option or "", 2)
  if sort == "" then return nil end
  if sort == ":" then return rest end
  return "\1" .. (sort == "=" and rest or redis.sha1hex(data))
end

-- Take the key that a record names, in its queue. The job goes without it if another job holds it.
function claims.take(rec)
  local holder = claims.holder(rec.queue, rec.unique)
  if holder and holder ~= rec.jid then rec.unique = nil else planned[rec.queue][rec.unique] = rec.jid end
end

function claims.release(rec)
  if claims.holder(rec.queue, rec.unique) == rec.jid then planned[rec.queue][rec.unique] = false end
end

finish_with(function()
  for queue, keys in pairs(planned) do
    local key = P .. "unique:" .. queue
    for name, jid in pairs(keys) do
      if jid then set_fields({ key, name, jid }) else del_fields({ key, name }) end
    end
  end
end)
