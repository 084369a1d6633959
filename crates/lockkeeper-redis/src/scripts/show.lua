-- Everything known about one lock. Writes nothing.
--
--   KEYS[1]  the lock     answer  {now, holders, records of the holders, then of those in line…}
local main = KEYS[1]
local m = redis.call('GET', main)
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
local answer, inside = { string.format('%.0f', now), 0 }, 0
if not m then
  return answer
end
local who = main .. ':who'
local function add(ids)
  for _, id in ipairs(ids) do
    local record = redis.call('HGET', who, id)
    if record and now < struct.unpack('>d', record, 11) then
      answer[#answer + 1] = record
    end
  end
end
local kind = string.sub(m, 1, 1)
if kind == 'H' then
  if now < struct.unpack('>d', m, 11) then
    answer[3] = m
  end
elseif kind == 'R' then
  add(redis.call('ZRANGE', main .. ':in', 0, -1))
elseif kind ~= 'F' then
  return redis.error_reply('FOREIGN the key ' .. main .. ' holds something that is not a lock')
end
answer[2] = #answer - 2
local flag = string.sub(m, 2, 2)
if flag == '1' or flag == '3' then
  add(redis.call('LRANGE', main .. ':line', 0, -1))
end
return answer
