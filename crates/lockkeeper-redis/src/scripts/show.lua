-- Everything known about some locks. Writes nothing.
--
--   KEYS[i]  a lock     answer  {now, per lock: {holders, records of the holders, then of those in line…}}
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
local answer = { string.format('%.0f', now) }

local function add(seen, who, ids)
  for _, id in ipairs(ids) do
    local record = redis.call('HGET', who, id)
    if record and now < struct.unpack('>d', record, 11) then
      seen[#seen + 1] = record
    end
  end
end

for i, main in ipairs(KEYS) do
  local m = redis.call('GET', main)
  local seen, kind = { 0 }, m and string.sub(m, 1, 1) or 'F'
  if kind == 'H' then
    if now < struct.unpack('>d', m, 11) then
      seen[2] = m
    end
  elseif kind == 'R' then
    add(seen, main .. ':who', redis.call('ZRANGE', main .. ':in', 0, -1))
  elseif kind ~= 'F' then
    return redis.error_reply('FOREIGN the key ' .. main .. ' holds something that is not a lock')
  end
  seen[1] = #seen - 1
  local flag = m and string.sub(m, 2, 2)
  if flag == '1' or flag == '3' then
    add(seen, main .. ':who', redis.call('LRANGE', main .. ':line', 0, -1))
  end
  answer[i + 1] = seen
end
return answer
