-- md5.lua: the MD5 digest of a text in hex. The server has no MD5 for scripts, and Lua needs about 15 µs for each 64
-- bytes: callers bound how many bytes one call of a script digests.
--- @module
local band, bor, bxor, bnot, rol, tobit = bit.band, bit.bor, bit.bxor, bit.bnot, bit.rol, bit.tobit
local SHIFTS = { { 7, 12, 17, 22 }, { 5, 9, 14, 20 }, { 4, 11, 16, 23 }, { 6, 10, 15, 21 } }
local WORDS = "<" .. string.rep("I4", 16)
local shift, constant, at = {}, {}, {} -- of each of the 64 steps; `at`: which word of a block it adds
for i = 0, 63 do
  local round = math.floor(i / 16)
  shift[i + 1] = SHIFTS[round + 1][i % 4 + 1]
  constant[i + 1] = math.floor(math.abs(math.sin(i + 1)) * 2 ^ 32)
  at[i + 1] = (round == 0 and i or round == 1 and 5 * i + 1 or round == 2 and 3 * i + 5 or 7 * i) % 16 + 1
end

function md5.hex(text)
  local padded = text .. "\128" .. string.rep("\0", (55 - #text) % 64) .. struct.pack("<I8", #text * 8)
  local a, b, c, d = 0x67452301, tobit(0xefcdab89), tobit(0x98badcfe), 0x10325476
  for first = 1, #padded, 64 do
    local words = { struct.unpack(WORDS, padded, first) }
    local a0, b0, c0, d0 = a, b, c, d
    for i = 1, 16 do
      local sum = a + bxor(d, band(b, bxor(c, d))) + constant[i] + words[at[i]]
      a, d, c, b = d, c, b, tobit(b + rol(sum, shift[i]))
    end
    for i = 17, 32 do
      local sum = a + bxor(c, band(d, bxor(b, c))) + constant[i] + words[at[i]]
      a, d, c, b = d, c, b, tobit(b + rol(sum, shift[i]))
    end
    for i = 33, 48 do
      local sum = a + bxor(b, c, d) + constant[i] + words[at[i]]
      a, d, c, b = d, c, b, tobit(b + rol(sum, shift[i]))
    end
    for i = 49, 64 do
      local sum = a + bxor(c, bor(b, bnot(d))) + constant[i] + words[at[i]]
      a, d, c, b = d, c, b, tobit(b + rol(sum, shift[i]))
    end
    a, b, c, d = tobit(a + a0), tobit(b + b0), tobit(c + c0), tobit(d + d0)
  end
  local bytes = struct.pack("<I4I4I4I4", a % 2 ^ 32, b % 2 ^ 32, c % 2 ^ 32, d % 2 ^ 32)
  return (string.gsub(bytes, ".", function(byte) return string.format("%02x", string.byte(byte)) end))
end
