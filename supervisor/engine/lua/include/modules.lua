-- modules.lua: tables of functions that are filled on first use. `define` returns, by table, what fills it.
local function modules(define, ...)
  local lazy, bodies = {}, nil
  function lazy.__index(functions, name)
    bodies = bodies or define()
    setmetatable(functions, nil)
    bodies[functions](functions)
    return functions[name]
  end
  for _, functions in ipairs({ ... }) do setmetatable(functions, lazy) end
end
