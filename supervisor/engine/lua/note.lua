#!lua flags=allow-oom
-- note.lua — record what a worker does because of a signal. Of requests through Redis ask.lua has the record.
--
-- Called by: audit.note (supervisor/engine/commands/audit.py)
-- Holds:     INV-12 the record has a bound
--
-- KEYS[1]   prefix of the namespace
-- ARGV[1]   now, unix ms; "" = the server's clock
-- ARGV[2]   worker
-- ARGV[3]   who sent the signal, at most 128 bytes
-- ARGV[4]   act, one word: reload, scale, pause, resume
-- ARGV[5]   value as JSON | ""
--
-- Returns   1
-- Errors    WRONGTYPE for a foreign key of ours; nothing has changed then.

--- @include this_layout
--- @include clock
--- @include acts
acts.note(ARGV[3], ARGV[4], "worker", { ARGV[2] }, "", ARGV[5])
commit()
return 1
