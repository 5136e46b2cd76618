-- inflate.lua: the beginning of what zlib has compressed. The server has no zlib for scripts, and Lua needs about
-- 0.1 ms for a short text: callers bound how many of them one call of a script reads.
--- @module
local LONGEST = 15 -- bits of a code
local ORDER = { 16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15 } -- in which a block has their lengths
local QUOTE, END_OF_BLOCK = 34, 256

-- Return a function that returns the next bits of a text as a number, the lowest first. It raises behind the last one.
local function bits_of(text, at)
  local held, count = 0, 0
  return function(wanted)
    while count < wanted do
      held, count, at = held + string.byte(text, at) * 2 ^ count, count + 8, at + 1
    end
    local value = held % 2 ^ wanted
    held, count = (held - value) / 2 ^ wanted, count - wanted
    return value
  end
end

-- Return the code of symbols from 0 on by their lengths: how many have each length, and the symbols in its order.
local function code_of(lengths)
  local counts, starts, symbols, start = {}, {}, {}, 1
  for length = 0, LONGEST do counts[length] = 0 end
  for _, length in ipairs(lengths) do counts[length] = counts[length] + 1 end
  for length = 1, LONGEST do
    starts[length], start = start, start + counts[length]
  end
  for i, length in ipairs(lengths) do
    if length > 0 then
      symbols[starts[length]], starts[length] = i - 1, starts[length] + 1
    end
  end
  return { counts = counts, symbols = symbols }
end

local function next_symbol(code, bits)
  local value, first, at = 0, 0, 1
  for length = 1, LONGEST do
    value = value + bits(1)
    local count = code.counts[length]
    if value - first < count then return code.symbols[at + value - first] end
    at, first, value = at + count, 2 * (first + count), 2 * value
  end
  error("no symbol has such a code")
end

local fixed_literals, fixed_distances

local function fixed_codes()
  if not fixed_literals then
    local literals, distances = {}, {}
    for i = 1, 288 do literals[i] = i <= 144 and 8 or i <= 256 and 9 or i <= 280 and 7 or 8 end
    for i = 1, 30 do distances[i] = 5 end
    fixed_literals, fixed_distances = code_of(literals), code_of(distances)
  end
  return fixed_literals, fixed_distances
end

-- Return the two codes that a block begins with.
local function read_codes(bits)
  local n_literals = bits(5) + 257
  local n_distances = bits(5) + 1
  local lengths = {}
  for i = 1, #ORDER do lengths[i] = 0 end
  for i = 1, bits(4) + 4 do lengths[ORDER[i] + 1] = bits(3) end
  local code = code_of(lengths)
  lengths = {}
  while #lengths < n_literals + n_distances do
    local length, times = next_symbol(code, bits), 1
    if length == 16 then
      length, times = lengths[#lengths] or error("nothing to repeat"), 3 + bits(2)
    elseif length == 17 then
      length, times = 0, 3 + bits(3)
    elseif length == 18 then
      length, times = 0, 11 + bits(7)
    end
    for _ = 1, times do lengths[#lengths + 1] = length end
  end
  return code_of({ unpack(lengths, 1, n_literals) }), code_of({ unpack(lengths, n_literals + 1) })
end

-- Return the number in the range for which a symbol stands. Ranges double with each `step` symbols.
local function in_range(symbol, step, bits)
  local n = math.max(math.floor(symbol / step) - 1, 0)
  return (n == 0 and symbol or (step + symbol % step) * 2 ^ n) + bits(n)
end

-- Return the bytes of the first block up to its second quotation mark.
local function to_second_quote(text, most)
  local bits, bytes, quotes = bits_of(text, 3), {}, 0
  local function add(byte)
    if not byte or #bytes == most then error("it ends nowhere") end
    bytes[#bytes + 1] = byte
    if byte == QUOTE then quotes = quotes + 1 end
    return quotes == 2
  end
  bits(1) -- whether it is the only block
  local kind = bits(2)
  if kind == 0 then
    bits(5 + 32) -- to the next byte, and the length of the block twice
    while not add(bits(8)) do end
    return bytes
  end
  local literals, distances
  if kind == 1 then
    literals, distances = fixed_codes()
  else
    literals, distances = read_codes(bits)
  end
  while true do
    local symbol = next_symbol(literals, bits)
    if symbol == END_OF_BLOCK then error("it ends nowhere") end
    if symbol < END_OF_BLOCK then
      if add(symbol) then return bytes end
    else
      local length = symbol == 285 and 258 or 3 + in_range(symbol - 257, 4, bits)
      local distance = 1 + in_range(next_symbol(distances, bits), 2, bits)
      for _ = 1, length do
        if add(bytes[#bytes - distance + 1]) then return bytes end
      end
    end
  end
end

-- Return the beginning of a text that zlib has compressed, up to its second quotation mark; nil if that is none of the
-- first `most` bytes (at most 1000), or zlib has not compressed it.
function inflate.first_string(text, most)
  if string.byte(text, 1) ~= 120 then return nil end
  local is_whole, bytes = pcall(to_second_quote, text, most)
  return is_whole and string.char(unpack(bytes)) or nil
end
