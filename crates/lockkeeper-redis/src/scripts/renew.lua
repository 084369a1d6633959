-- Extend what is held; never acquire. Many locks of one hash slot (or of one server) at once.
--
--   KEYS[i]  a lock     ARGV[2i-1]  id of the claim     ARGV[2i]  ttl in ms
--   answer   one digit per lock: 0 lost, 1 held, 2 held and somebody waits behind
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
local answer = {}

local function live_at_least(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ms)
  end
end

-- Whether somebody stands in line, as the state of the lock tells.
local function is_wanted(m)
  local flag = string.sub(m, 2, 2)
  return flag == '1' or flag == '3'
end

for i, main in ipairs(KEYS) do
  local me, ttl = ARGV[2 * i - 1], tonumber(ARGV[2 * i])
  local m = redis.pcall('GET', main)
  local expiry, digit = now + 1 + ttl * 100, '0'
  if type(m) == 'table' and not string.find(m.err, 'WRONGTYPE', 1, true) then
    -- A right that is missing says nothing about the lock.
    return m
  elseif type(m) ~= 'string' then
    digit = '0'
  elseif string.sub(m, 1, 1) == 'H' then
    if #m >= 74 and string.sub(m, 19, 34) == me and now < struct.unpack('>d', m, 11) then
      digit = is_wanted(m) and '2' or '1'
      if string.sub(m, 2, 2) == '0' then
        redis.call('SET', main, string.sub(m, 1, 10) .. struct.pack('>d', expiry) .. string.sub(m, 19),
          'PX', ARGV[2 * i])
      else
        redis.call('SETRANGE', main, 10, struct.pack('>d', expiry))
        live_at_least(main, ttl + 10)
      end
    end
  elseif string.sub(m, 1, 1) == 'R' then
    local who = main .. ':who'
    local record = redis.call('HGET', who, me)
    if record and #record >= 74 and string.sub(record, 1, 1) == 'H' and now < struct.unpack('>d', record, 11) then
      digit = is_wanted(m) and '2' or '1'
      redis.call('HSET', who, me, string.sub(record, 1, 10) .. struct.pack('>d', expiry) .. string.sub(record, 19))
      redis.call('ZADD', main .. ':in', expiry, me)
      for _, key in ipairs({ main, who, main .. ':in', main .. ':line' }) do
        live_at_least(key, ttl + 10)
      end
    end
  end
  answer[i] = digit
end
return table.concat(answer)
