-- Take the lock away from all who hold it, or from one; those who wait keep their places and the next in line gets it.
--
--   KEYS[1]  the lock     KEYS[2]  the mark     ARGV[1]  the counter of the holder that is meant, or empty for all
--   answer  {now, record of each that lost it…}
local main, mark, only = KEYS[1], KEYS[2], ARGV[1]
local m = redis.call('GET', main)
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
local answer = { string.format('%.0f', now) }
if not m then
  return answer
end
--@room
load_room(false)
for _, record in ipairs(inside_records()) do
  if only == '' or only == string.format('%.0f', (struct.unpack('>d', record, 3))) then
    answer[#answer + 1] = record
    drop(string.sub(record, 19, 34))
    tell(record, 'W' .. string.sub(record, 19, 34))
  end
end
if only == '' and used > 0 then
  -- Whoever has no record of ours cannot be told.
  answer[#answer + 1] = ''
  for _, id in ipairs(redis.call('ZRANGE', inside, 0, -1)) do
    drop(id)
  end
  used, smallest, differ = 0, 4294967295, 0
end
admit(false, 0)
store(0)
return answer
