-- Hold less of the room from now on, and let in those who fit beside it now; never acquire, never extend.
--
--   KEYS[1]  the lock     ARGV[1]  id of the claim (16 bytes)     answer  1 done, 0 it is not held by this claim
--   KEYS[2]  the mark     ARGV[2]  weight and capacity, packed
local main, mark, me, load = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local m = redis.call('GET', main)
if not m then
  return 0
end
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
--@room
local mine = load_room(me)
local holds = mine and kind_of(mine) == 'H'
if holds then
  local record = string.sub(mine, 1, 50) .. load .. string.sub(mine, 59)
  if sole then
    sole = record
  else
    put(record)
  end
  used, smallest, differ = 0, 4294967295, 0
  for _, other in ipairs(sole and { sole } or insiders()) do
    local weight, capacity = struct.unpack('>I4I4', other, 51)
    if used > 0 and capacity ~= smallest then
      differ = 1
    end
    used, smallest = used + weight, math.min(smallest, capacity)
  end
end
admit(false, 0)
store(0)
return holds and 1 or 0
