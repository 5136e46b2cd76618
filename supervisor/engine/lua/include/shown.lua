-- shown.lua: how much payload and output of jobs one reply has, in bytes: not much more than ANSWER_ROOM in all, and of
-- the data of one job no more than SHOWN. The rest is replaced by its size, and data.lua returns the bytes.
local ANSWER_ROOM, SHOWN = 1048576, 65536
local answer_room = ANSWER_ROOM

-- Return a string that was read of at most so many bytes, else its size.
local function shown(text, most)
  if #text > most or answer_room <= 0 then return #text end
  answer_room = answer_room - #text
  return text
end

-- Return the string of a key of at most so many bytes, else its size; false if there is none, or for a foreign type.
local function text_of(key, most)
  local size = redis.pcall("STRLEN", key)
  if type(size) ~= "number" or size == 0 then return false end
  if size > most or answer_room <= 0 then return size end
  answer_room = answer_room - size
  return redis.call("GET", key)
end
