-- prefix.lua: KEYS[1] is the namespace's prefix with its hash tag, so all keys of one call lie in one slot.
local P = KEYS[1]
