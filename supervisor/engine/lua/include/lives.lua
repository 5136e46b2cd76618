-- lives.lua: who leased, renewed or swept within this is taken to live. looks.LIVES_S is the same for those who look.
local LIVES = 60000 -- ms
