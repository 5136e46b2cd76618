#!lua
-- stream.lua — append what handlers stream, for the readers of their jobs.
--
-- Called by: leasing.stream (supervisor/engine/commands/leasing.py)
-- Holds:     INV-3 only the current token and worker may stream; INV-12 a stream has a most size and an end
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3..] per lease: jid, token, number of chunks that it has streamed before ("" = they are sent once), number of
--           chunks, the chunks as packed. What was appended already, and is sent again, changes nothing.
--
-- Returns   one string: "1" for each lease that is held, "0" for each that is lost.
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include while_moving
--- @include this_layout
--- @include clock
--- @include streams
local worker, answers = ARGV[2], {}
for at = 3, #ARGV, 5 do
  local jid, token, before, n, packed = unpack(ARGV, at, at + 4)
  local rec = read_job(jid)
  local is_held = rec and rec.owner == token .. ":" .. worker and rec.state == "running"
  if is_held then
    rec.started = rec.started or 1
    streams.add(rec, token, tonumber(before), tonumber(n), packed)
  end
  answers[#answers + 1] = is_held and "1" or "0"
end
commit()
return table.concat(answers)
