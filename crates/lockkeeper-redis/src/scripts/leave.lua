-- Give up the lock or the place; whoever is next in line is holder when this script ends.
--
--   KEYS[1]  the lock     ARGV[1]  id of the claim (16 bytes)
--                         ARGV[2]  only if a `turn` of the claim may still be on its way: refuse it for so many ms
--   answer   1 there was something to give up, 0 there was nothing
--
-- A lock that nobody waits for costs two calls: GET, DEL. One that the next in line takes costs seven more: TIME, LRANGE, HGET,
-- SET, PUBLISH, LREM, HDEL, and SET instead of DEL.
local main, me, refused_for = KEYS[1], ARGV[1], ARGV[2]
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
local brace = string.find(main, '{', 1, true)
local mark = string.sub(main, 1, brace - 1) --@mark
  .. 'mark'
-- The usual hand-off, without the whole of the room: a lock that is held alone goes to the first in line, which takes all
-- of it and hears of it.
if not refused_for and #m >= 82 and string.sub(m, 1, 2) == 'H1' and string.sub(m, 19, 34) == me
  and now < struct.unpack('>d', m, 11) then
  local line, who = main .. ':line', main .. ':who'
  local ids = redis.call('LRANGE', line, 0, 1)
  local record = ids[1] and redis.call('HGET', who, ids[1])
  if record and #record >= 74 and string.sub(record, 1, 2) == 'W0' and now < struct.unpack('>d', record, 11) then
    local weight, capacity, ttl = struct.unpack('>I4I4d', record, 51)
    if weight == capacity then
      local flag, counter = ids[2] and '1' or '0', math.max(struct.unpack('>d', m, 3) + 1, now)
      local seen = redis.call('SET', mark, struct.pack('>d', counter), 'GET')
      seen = seen and #seen == 8 and struct.unpack('>d', seen)
      if seen and counter <= seen then
        counter = seen + 1
        redis.call('SET', mark, struct.pack('>d', counter))
      end
      local number = struct.pack('>d', counter)
      local wake = string.sub(main, 1, brace - 1) .. 'wake:' --@channel
      local heard = redis.call('PUBLISH', wake .. string.sub(record, 35, 50),
        'G' .. ids[1] .. number .. string.sub(record, 67, 74) .. flag)
      if heard > 0 then
        redis.call('LREM', line, 1, ids[1])
        redis.call('HDEL', who, ids[1])
        -- As long as all the keys live already, or twice as long as needed.
        local lives = struct.unpack('>d', m, #m - 7)
        local stretched = lives < now + (ttl + 10) * 100
        if stretched then
          lives = now + (ttl + 10) * 200
        end
        local ms = math.ceil((lives - now) / 100)
        redis.call('SET', main, 'H' .. flag .. number .. struct.pack('>d', now + 1 + ttl * 100) .. string.sub(record, 19)
          .. (ids[2] and struct.pack('>d', lives) or ''), 'PX', ms)
        if stretched and ids[2] then
          redis.call('PEXPIRE', who, ms)
          redis.call('PEXPIRE', line, ms)
        end
        return 1
      end
    end
  end
end
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
