-- Keep what is held for a time that is not the ttl, for a claim that will not be heard of again.
--
--   KEYS[1]  the lock     ARGV[1]  id of the claim (16 bytes)
--   KEYS[2]  the mark     ARGV[2]  for how long, in ms
--                         ARGV[3]  only if a `turn` of the claim may still be on its way: refuse it for so many ms
--   answer   1 it is kept, 0 it was not held
local main, mark, me, refused_for = KEYS[1], KEYS[2], ARGV[1], ARGV[3]
local m = redis.call('GET', main)
if not m then
  return 0
end
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
--@room
local mine = load_room(me)
local kept = mine and kind_of(mine) == 'H'
if kept then
  local expiry = now + 1 + ARGV[2] * 100
  refresh(mine, (struct.unpack('>d', mine, 3)), expiry)
  live_until(expiry + 1000)
  -- Whoever is next reckoned with another end.
  local id = redis.call('LINDEX', line, 0)
  local record = id and record_of(id)
  if record then
    tell(record, 'W' .. id)
  end
  if refused_for then
    redis.call('HSET', gone, me, '1')
    redis.call('PEXPIRE', gone, refused_for)
    graves = true
    live_until(now + (refused_for + 10) * 100)
  end
end
admit(false, 0)
store(0)
return kept and 1 or 0
