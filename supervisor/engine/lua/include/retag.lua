-- retag.lua: adds tags to a job or a recurrence, or removes them, for tag.lua and recurtag.lua.
local function retagged(tags, subject)
  local given, kept, has = {}, {}, {}
  for i = 5, #ARGV do given[ARGV[i]] = true end
  for _, tag in ipairs(tags) do
    if ARGV[2] == "add" or not given[tag] then kept[#kept + 1] = tag end
    has[tag] = true
  end
  if ARGV[2] == "add" then
    for i = 5, #ARGV do
      if not has[ARGV[i]] then kept[#kept + 1] = ARGV[i] end
      has[ARGV[i]] = true
    end
  end
  if #kept > 100 then refuse("REFUSED", subject .. " cannot have more than 100 tags") end
  return kept
end
