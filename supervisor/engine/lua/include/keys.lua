-- keys.lua: the names of the keys. Each begins with the prefix.
--- @include prefix
local function job_key(jid) return P .. "job:" .. jid end
local function queue_key(queue, part) return P .. "queue:" .. queue .. ":" .. part end

-- Return the member of a job in waiting or scheduled. Members of one score are sorted as texts, so numbers have one
-- length.
local function member_of(jid, seq) return string.format("%013x", seq) .. jid end

-- Names are stored a line each, because no name has a control character.
local function lines_of(text)
  local lines = {}
  for line in string.gmatch(text or "", "[^\n]+") do lines[#lines + 1] = line end
  return lines
end
