-- leased.lua: what a lease reads of a record and answers, and how much an answer may have of payload.
local FIELDS = {
  "klass", "queue", "priority", "retries", "timeout", "max_deaths", "bytes", "failures", "deaths", "interruptions",
  "state", "size", "put", "since", "special", "lane", "trace", "ready",
}
local ANSWER_BYTES = 1048576
local UNSIZED_BYTES = 1024 -- a record names its size only above this
local LONGEST_WAIT = 30000 -- ms, of a worker for a bell, before it asks by itself
