-- lives.lua: a worker that leased, renewed or swept within this time is live. workers.LIVES_S has the same value.
local LIVES = 60000 -- ms
