-- this_layout.lua: ends the script with LAYOUT, before anything is written, in a namespace of another layout; with
-- SHARDED and their number, if the caller does not know how many shards the namespace has.
--- @include layout
if layout.state == "sharded" or layout.state == "moving" then
  error({ err = "SHARDED " .. (layout.shards or "1") .. " namespace " .. string.sub(P, 2, -3) .. " has "
    .. (layout.shards or "1") .. " shards" })
elseif layout.state ~= "2" and layout.state ~= "new" then
  local why = {
    ["1"] = "has the layout of Leasehold 0.1: stop its supervisors and clients, then run `leasehold upgrade`",
    newer = "has a newer layout than this Leasehold knows (" .. tostring(layout[1]) .. ", not 2): use a newer"
      .. " Leasehold",
    back = "is on its way back to the layout of Leasehold 0.1: `leasehold upgrade --back` goes on with that,"
      .. " `leasehold upgrade` undoes it",
    lost = "has lost the mark of its layout: `leasehold check --repair` restores it",
  }
  error({ err = "LAYOUT namespace " .. string.sub(P, 2, -3) .. " " .. why[layout.state] })
end
