#!lua
-- door.lua — add a door to the list of another program, change it, or remove it.
--
-- Called by: doors.add, doors.remove (supervisor/engine/commands/doors.py)
-- Holds:     INV-12 at most 100 doors
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   name
-- ARGV[3]   its format, lists, source, queue, klass ("" = as the entry says), and foreign class, a tab and klass for
--           each that is mapped; a line each, with tabs between the lists; "" = remove the door
-- ARGV[4]   the first list
-- ARGV[5]   name of the actor; "" = unknown
--
-- Returns   1, or 0 if nothing has changed.
-- Errors    REFUSED if the list has another type, lies in the namespace or on another server of a cluster, if this
--           account may not change it or read the items of its ids, if another door has it, or if there are 100 doors;
--           WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include stage
--- @include acts
local MOST, key = 100, P .. "doors"
local name, text, list = ARGV[2], ARGV[3], ARGV[4]

local function refuse_if(condition, why)
  if condition then refuse("REFUSED", why) end
end

local had = redis.call("HGET", key, name) or ""
if had == text then return 0 end
if had ~= "" then drop(P .. "doorlists:" .. name) end
if text ~= "" then
  refuse_if(string.sub(list, 1, #P) == P, list .. " lies in the namespace, and is of no other program")
  local found = redis.pcall("TYPE", list)
  refuse_if(found.err, "a door to " .. list .. " is impossible: both must lie on one server, without Cluster, and this"
    .. " account needs the right to it")
  refuse_if(found.ok ~= "none" and found.ok ~= "list", list .. " is a " .. tostring(found.ok) .. ", and no list")
  refuse_if(not redis.acl_check_cmd("LTRIM", list, "0", "-1"), "this account may not change " .. list)
  local format, source = string.match(text, "^([^\n]*)\n[^\n]*\n([^\n]*)\n")
  local item = source .. ":item:"
  local may_read = format ~= "rwq" or redis.acl_check_cmd("GET", item) and redis.acl_check_cmd("STRLEN", item)
  refuse_if(not may_read, "this account may not read the keys " .. source .. ":item:<id>")
  local job = (string.match(source, "^(.-):queue:") or "") .. ":job:"
  local may_end = format ~= "rq-json" or redis.acl_check_cmd("HSET", job, "status", "")
  refuse_if(not may_end, "this account may not change the keys " .. job .. "<id>")
  local doors = redis.call("HGETALL", key)
  for i = 1, #doors, 2 do
    local its_list = string.match(doors[i + 1], "^[^\n]*\n([^\t\n]*)")
    refuse_if(doors[i] ~= name and its_list == list, "door " .. doors[i] .. " has the list " .. list .. " already")
  end
  refuse_if(had == "" and #doors >= 2 * MOST, "there are " .. MOST .. " doors already")
  local queue = string.match(text, "^[^\n]*\n[^\n]*\n[^\n]*\n([^\n]*)\n")
  stage.check_room(queue)
  stage.know_queue(queue) -- so that those who serve it by pattern look behind the door
  set_fields({ key, name, text })
else
  del_fields({ key, name })
end
acts.note(ARGV[5], text ~= "" and "add" or "remove", "door", { name }, "", list)
for _, worker in ipairs(redis.call("ZREVRANGE", P .. "workers-seen", 0, 999)) do hint(worker, "doors") end
commit()
return 1
