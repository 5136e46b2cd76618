-- dense.lua: the dense form of a record: one string. Most jobs never need more.
--
--   L482 1795400000250 web-1:812:default   the last lease, once there was one; S: the worker has reported its start
--   1j 00000000001f 1795400000000          form 1, kind of payload, sequence, when it was put
--   emails                                 queue
--   email.send                             klass
--   p5 r3                                  options, a letter and a value each
--   {"to":"ann@example.com"}               the payload, or its size if it lies in data:<jid>
local dense = {}
-- Most calls need none of these functions, so they are defined at the first use.
setmetatable(dense, { __index = function(_, wanted)
  setmetatable(dense, nil)
  dense.INLINE_BYTES = 512 -- a longer payload lies beside the record: Redis hashes each byte that a script sees
  local LETTERS = { priority = "p", retries = "r", timeout = "t", max_deaths = "d", trace = "c" }
  local LETTERED = { "priority", "retries", "timeout", "max_deaths", "trace" }
  dense.NAMES = {}
  for name, letter in pairs(LETTERS) do dense.NAMES[letter] = name end
  local OF_A_LEASE = "^([LS])(%d+) (%d+) ([^\n]+)\n()"
  local OF_A_JOB = "^1([jbJB]) (%x+) (%d+)\n([^\n]+)\n([^\n]+)\n([^\n]*)\n()"
  dense.FIELDS = { -- that a dense record can hold
    "klass", "queue", "seq", "put", "bytes", "size", "priority", "retries", "timeout", "max_deaths", "trace", "state",
    "owner", "popped", "started",
  }
  local HELD = { jid = true, was = true }
  for _, field in ipairs(dense.FIELDS) do HELD[field] = true end

  local function is_within(value, bound)
    local n = tonumber(value)
    return n and n >= 0 and n < bound and n % 1 == 0
  end

  -- Return whether a record can be stored densely. What has no place in it makes the record a full one.
  function dense.can_hold(rec)
    for field in pairs(rec) do
      if not HELD[field] then return false end
    end
    local is_leased = rec.state == "running" or rec.state == "complete"
    if rec.state and not is_leased or is_leased ~= (rec.owner ~= nil) or is_leased ~= (rec.popped ~= nil) then
      return false
    end
    if not (rec.klass and rec.queue) or rec.owner and not string.find(rec.owner, "^%d+:.") then return false end
    return is_within(rec.put, 1e13) and is_within(rec.popped or 0, 1e13) and is_within(rec.seq, 2 ^ 52)
      and (rec.bytes == nil or tostring(rec.bytes) == "1")
  end

  -- Return a record as a string. `payload`: its text, or with `is_beside` only its size.
  function dense.text_of(rec, payload, is_beside)
    local lease, options, kind = "", {}, rec.bytes and "b" or "j"
    if rec.owner then
      local token, worker = string.match(rec.owner, "^(%d+):(.*)$")
      lease = string.format("%s%s %013d %s\n", rec.started and "S" or "L", token, rec.popped, worker)
    end
    for _, name in ipairs(LETTERED) do
      if rec[name] then options[#options + 1] = LETTERS[name] .. rec[name] end
    end
    return lease .. string.format("1%s %013x %013d\n", is_beside and string.upper(kind) or kind, rec.seq, rec.put)
      .. rec.queue .. "\n" .. rec.klass .. "\n" .. table.concat(options, " ") .. "\n" .. payload
  end

  -- Return the fields of a dense record except its state, and its payload; nil for a payload that lies beside. Return
  -- nothing if the text is none.
  function dense.fields_of(text)
    local flag, token, popped, worker, from = string.match(text, OF_A_LEASE)
    local kind, seq, put, queue, klass, options, at = string.match(text, OF_A_JOB, from or 1)
    if not kind then return nil end
    local fields, payload = { klass = klass, queue = queue }, string.sub(text, at)
    fields.seq, fields.put = string.format("%d", tonumber(seq, 16)), string.format("%d", put)
    if flag then
      fields.owner, fields.popped = token .. ":" .. worker, string.format("%d", popped)
      if flag == "S" then fields.started = "1" end
    end
    for letter, value in string.gmatch(options, "(%l)(%S+)") do
      local name = dense.NAMES[letter]
      if name then fields[name] = value end
    end
    if kind == "b" or kind == "B" then fields.bytes = "1" end
    if kind == "j" or kind == "b" then return fields, payload end
    fields.size = payload
    return fields, nil
  end
  return dense[wanted]
end })
