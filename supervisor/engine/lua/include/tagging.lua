-- tagging.lua: the tags of a job and the index of jobs by tag.
--- @module
--- @include clock
--- @include plan
local tag_sizes = {}
-- The most tags of several jobs that a call removes: so many that only one job has, or five times as many shared ones.
local MOST_UNDONE, SHARED = 5000, 0.2
local undone = 0

function tagging.undone() return undone end
function tagging.is_spent() return undone >= MOST_UNDONE end

local function resize_tag(tag, by)
  local size = (tag_sizes[tag] or redis.call("ZCARD", P .. "tag:" .. tag)) + by
  tag_sizes[tag] = size
  place(P .. "tag-counts", tag, size > 0 and size)
end

function tagging.unindex(jid, tags)
  for _, tag in ipairs(tags) do
    undone = undone + (tag_sizes[tag] and SHARED or 1)
    place(P .. "tag:" .. tag, jid, false)
    resize_tag(tag, -1)
  end
end

function tagging.of(rec)
  local key = P .. "tags:" .. rec.jid
  return rec.tagged and lines_of(strings[key] or redis.call("GET", key) or "") or {}
end

-- Return the tags of some jobs, a line each, by jid. Those of a foreign type count as missing.
function tagging.texts_of(recs)
  local keys, jids, texts = {}, {}, {}
  for _, rec in ipairs(recs) do
    local key = P .. "tags:" .. rec.jid
    texts[rec.jid] = strings[key]
    if rec.tagged and not strings[key] then keys[#keys + 1], jids[#jids + 1] = key, rec.jid end
  end
  for first = 1, #keys, 1000 do
    local found = redis.call("MGET", unpack(keys, first, math.min(first + 999, #keys)))
    for i, text in ipairs(found) do texts[jids[first + i - 1]] = text or nil end
  end
  return texts
end

-- Return how many tags a job would lose by `set`.
function tagging.n_lost(rec, tags)
  local kept, n = {}, 0
  for _, tag in ipairs(tags) do kept[tag] = true end
  for _, tag in ipairs(tagging.of(rec)) do n = n + (kept[tag] and 0 or 1) end
  return n
end

-- Give a job these tags in place of the former ones. Each keeps the time when it was first given.
function tagging.set(rec, tags)
  local before, after, key = {}, {}, P .. "tags:" .. rec.jid
  for _, tag in ipairs(tagging.of(rec)) do before[tag] = true end
  for _, tag in ipairs(tags) do
    after[tag] = true
    if not before[tag] then
      place(P .. "tag:" .. tag, rec.jid, now)
      resize_tag(tag, 1)
    end
  end
  for tag in pairs(before) do
    if not after[tag] then tagging.unindex(rec.jid, { tag }) end
  end
  if #tags == 0 then
    rec.tagged = nil
    drop(key)
  else
    rec.tagged = 1
    store(key, table.concat(tags, "\n"))
  end
end
