-- Give up the lock or the place; whoever is next in line is holder when this script ends.
--
--   KEYS[1]  the lock     ARGV[1]  id of the claim (16 bytes)
--   answer   1 there was something to give up, 0 there was nothing
--
-- A lock that nobody waits for costs two calls: GET, DEL.
local main, me = KEYS[1], ARGV[1]
local m = redis.call('GET', main)
if not m then
  return 0
end
local state = string.sub(m, 1, 2)
if state == 'H0' then
  if string.sub(m, 19, 34) ~= me then
    return 0
  end
  redis.call('DEL', main)
  return 1
elseif state == 'F0' then
  return 0
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
admit(false)
store(0)
return mine and 1 or 0
