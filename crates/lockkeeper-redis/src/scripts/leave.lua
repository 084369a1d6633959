-- Give up the lock or the place; whoever is next in line is holder when this script ends.
--
--   KEYS[1]  the lock     ARGV[1]  id of the claim (16 bytes)
--   KEYS[2]  the mark     ARGV[2]  only if a `turn` of the claim may still be on its way: refuse it for so many ms
--   answer   1 there was something to give up, 0 there was nothing
--
-- A lock that nobody waits for costs two calls: GET, DEL.
local main, mark, me, refused_for = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local m = redis.call('GET', main)
if not refused_for then
  if not m then
    return 0
  end
  if string.sub(m, 1, 2) == 'H0' then
    if string.sub(m, 19, 34) ~= me then
      return 0
    end
    redis.call('DEL', main)
    return 1
  end
end
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
--@room
local mine = load_room(me)
if mine then
  if kind_of(mine) == 'H' then
    drop(me)
  else
    leave_line(me)
  end
end
admit(false, 0)
if refused_for then
  -- The lock outlives this mark, and with its flag no `turn` goes by without looking.
  redis.call('HSET', gone, me, '1')
  redis.call('PEXPIRE', gone, refused_for)
  graves = true
  live_until(now + (refused_for + 10) * 100)
end
store(0)
return mine and 1 or 0
