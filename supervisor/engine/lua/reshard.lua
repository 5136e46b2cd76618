#!lua flags=allow-oom
-- reshard.lua — look at, begin and end a pass that moves jobs from the first shard into the others.
--
-- Called by: resharding.look, resharding.begin, resharding.end (supervisor/engine/commands/resharding.py)
-- Holds:     one pass at a time: what an earlier one still sends is refused
--
-- KEYS[1]   prefix of a shard; the first one's for "begin"
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   "look", "begin" or "end"
-- ARGV[3]   number of shards
-- ARGV[4]   number of the pass that ends; "" for the other verbs
-- ARGV[5]   "1" if some jobs stay in the first shard
-- ARGV[6]   the last sequence that the pass knows of: with a later one, jobs have come that it has not seen; "" = any
--
-- Returns   array: the number of shards as the mark of the layout has it | "" in a namespace without keys; number of
--           the pass | ""; the last sequence; 1 if there are doors; 1 if max-concurrency is set for all queues.
-- Errors    REFUSED with what is in the way; of another pass. LAYOUT in a namespace of another layout. WRONGTYPE for a
--           foreign key of ours. Nothing has changed then.

--- @include clock
--- @include layout
local verb, wanted = ARGV[2], ARGV[3]
local is_new = layout.state == "new"
local found = not is_new and (layout.shards or "1") or ""
if layout.state == "moving" or layout.state == "sharded" then layout.state = "2" end
--- @include this_layout
--- @include plan
local pass, seq = redis.call("GET", P .. "resharding") or "", layout.seq or "0"
local has_doors = math.min(redis.call("HLEN", P .. "doors"), 1)
local is_limited = redis.call("HEXISTS", P .. "options", "max-concurrency")

if verb == "begin" then
  if found == "" or found == "1" then
    if has_doors == 1 then
      refuse("REFUSED", "a namespace of several shards has no doors: remove them (leasehold door)")
    elseif is_limited == 1 then
      refuse("REFUSED", "a namespace of several shards has no max-concurrency: unset it, and use a limit instead")
    end
    layout.shards = "1>" .. wanted
  elseif found == wanted or found == wanted .. "<" then
    layout.shards = wanted .. ">" .. wanted
  elseif string.match(found, ">(%d+)$") ~= wanted then
    local to = string.match(found, ">(%d+)$")
    refuse("REFUSED", to and "its jobs are being moved into " .. to .. " shards: `leasehold reshard " .. to
      .. "` goes on with that" or "the namespace has " .. string.match(found, "^%d+") .. " shards, and a namespace gets"
      .. " several of them only once")
  end
  pass = digits(math.max(now, (tonumber(pass) or 0) + 1))
  store(P .. "resharding", pass)
elseif verb == "end" then
  if pass ~= ARGV[4] then refuse("REFUSED", "another pass has begun, or has ended") end
  layout.shards = wanted .. ((ARGV[5] == "1" or tonumber(seq) > (tonumber(ARGV[6]) or math.huge)) and "<" or "")
  store(P .. "resharding", digits(tonumber(pass) + 1)) -- so that no call of it comes after this
end
if verb ~= "look" then
  found = layout.shards
  store(P .. "config", layout.mark())
end
commit()
return { found, pass, seq, has_doors, is_limited }
