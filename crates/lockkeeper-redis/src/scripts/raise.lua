-- Lift the counter of what is held; never acquire, never extend. For a lock over several servers.
--
--   KEYS[1]  the lock     ARGV[1]  id of the claim (16 bytes)     ARGV[2]  the counter to reach
--   answer   the counter it has now, or 0 if it is not held by this claim
--
-- `turn` goes by this server's clock alone. A counter that came from a server with a faster clock is kept aside
-- until this clock has passed it, so that whoever comes next learns of it here.
local main, me, counter = KEYS[1], ARGV[1], tonumber(ARGV[2])
local m = redis.call('GET', main)
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
if not m or string.sub(m, 1, 1) ~= 'H' or string.sub(m, 19, 34) ~= me or struct.unpack('>d', m, 11) <= now then
  return 0
end
counter = math.max(counter, (struct.unpack('>d', m, 3)))
local raised = redis.call('GET', main .. ':raised')
if raised then
  local others = struct.unpack('>d', raised, 1)
  counter = math.max(counter, string.sub(raised, 9) == me and others or others + 1)
end
redis.call('SETRANGE', main, 2, struct.pack('>d', counter))
-- A minute more, in case this clock is set back a little.
redis.call('SET', main .. ':raised', struct.pack('>d', counter) .. me, 'PX',
  60000 + math.max(0, math.ceil((counter - now) / 100)))
return counter
