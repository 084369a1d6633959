-- Lift the counter of what is held; never acquire, never extend. For a lock over several servers.
--
--   KEYS[1]  the lock     ARGV[1]  id of the claim (16 bytes)     ARGV[2]  the counter to reach
--   KEYS[2]  the mark     answer   the counter it has now, or 0 if it is not held by this claim
--
-- The mark is lifted too, so that whoever comes next is given a larger one, however slow this server's clock.
local main, mark, me, counter = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
local m = redis.call('GET', main)
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
if not m or #m < 74 or string.sub(m, 1, 1) ~= 'H' or string.sub(m, 19, 34) ~= me
  or struct.unpack('>d', m, 11) <= now then
  return 0
end
local own = struct.unpack('>d', m, 3)
if counter <= own then
  return own
end
redis.call('SETRANGE', main, 2, struct.pack('>d', counter))
local seen = redis.call('GET', mark)
seen = seen and #seen == 8 and struct.unpack('>d', seen)
if not seen or seen < counter then
  redis.call('SET', mark, struct.pack('>d', counter))
end
return counter
