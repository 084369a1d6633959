-- The admission rule, shared by `turn`, `leave`, `lower` and `break`. Expects main, mark, m, now.
--
--   main        string   state of the lock, one of
--     H record           exactly one holder
--     R                  several holders: counter, weight in use, smallest capacity, whether they differ
--     F                  nobody: the last counter; only while somebody waits or is gone
--   main:in     zset     several holders: id by expiry
--   main:line   list     those who wait, in order: id
--   main:who    hash     id to record, of several holders and of those who wait
--   main:gone   hash     those who left while a `turn` of theirs may still be on its way
--   mark        string   the largest counter ever given, packed, for all locks of this server (of this tag, on a cluster). It
--                        stays when locks go, so that counters grow whatever the server's clock does.
--
--   record  1 kind H or W   2 flag   3 counter (H) or since when (W)   11 expiry   19 id   35 process
--           51 weight   55 capacity   59 ttl in ms   67 number of the last ask   75 name and label
--   The flag of main is 1 while somebody stands in line, 2 while somebody is gone, 3 while both are true; only 0
--   is left to the short ways of `turn` and `leave`. Unless it is 0, a sole holder's record is followed by the tick
--   until which all keys live, so that nobody has to ask each of them. The flag of a waiter is 1 while its
--   process does not listen: it keeps its place but is passed over, until it asks again. From then on its flag is 2, and the
--   room is kept for it: whoever is alive and asks now and then is passed over once, not for ever. Times are ticks of 10 µs since 2020, because a
--   counter may not fall behind the number of grants and 48 bits must last until 2109.
local line, who, inside, gone = main .. ':line', main .. ':who', main .. ':in', main .. ':gone'
local brace = string.find(main, '{', 1, true)
local wake = string.sub(main, 1, brace - 1) .. 'wake:' --@channel
local sole, used, smallest, differ, last, flagged, graves = false, 0, 4294967295, 0, 0, false, false
-- The tick until which the keys live, and whether they must be told so.
local lives, stretched = now, false
-- How many stand in line, once counted.
local count = false

--@shape
local function kind_of(record)
  return string.sub(record, 1, 1)
end

-- What is no record of ours is none at all.
local function record_of(id)
  local record = redis.call('HGET', who, id)
  return is_record(record) and record
end

local function waiting()
  count = count or redis.call('LLEN', line)
  return count
end

-- Twice as long as needed, so that most calls need not tell the keys.
local function live(ms)
  if lives < now + ms * 100 then
    lives, stretched = now + ms * 200, true
  end
end

local function live_until(tick)
  if lives < tick then
    lives, stretched = tick, true
  end
end

local function leave_line(id)
  count = waiting() - redis.call('LREM', line, 1, id)
  redis.call('HDEL', who, id)
end

local function holders()
  return sole and 1 or used > 0 and redis.call('ZCARD', inside) or 0
end

local function insiders()
  local records = {}
  for _, id in ipairs(redis.call('ZRANGE', inside, 0, -1)) do
    local record = record_of(id)
    if record then
      records[#records + 1] = record
    end
  end
  return records
end

local function inside_records()
  if sole then
    return { sole }
  end
  return used > 0 and insiders() or {}
end

local function tell(record, text)
  return redis.call('PUBLISH', wake .. string.sub(record, 35, 50), text)
end

local function drop(id)
  if sole then
    sole = false
  else
    local record = record_of(id)
    redis.call('ZREM', inside, id)
    redis.call('HDEL', who, id)
    used = used - (record and struct.unpack('>I4', record, 51) or 0)
    if differ == 1 then
      smallest = 4294967295
      for _, other in ipairs(inside_records()) do
        smallest = math.min(smallest, (struct.unpack('>I4', other, 55)))
      end
    end
    if redis.call('ZCARD', inside) > 0 then
      return
    end
  end
  used, smallest, differ = 0, 4294967295, 0
end

-- Read the state, forget holders that expired, and find the record of `me`.
local function load_room(me)
  local kind = m and kind_of(m) or 'F'
  if m and not is_state(m) then
    error({ err = 'FOREIGN the key ' .. main .. ' holds something that is not a lock' })
  end
  if m then
    last = struct.unpack('>d', m, 3)
    local flag = string.sub(m, 2, 2)
    flagged, graves = flag == '1' or flag == '3', flag == '2' or flag == '3'
  end
  if kind == 'H' then
    local expiry = struct.unpack('>d', m, 11)
    lives = expiry + 1000
    if flagged or graves then
      -- A renewal stretches the life of `main` alone.
      stretched = struct.unpack('>d', m, #m - 7) < lives
      lives, m = math.max(lives, (struct.unpack('>d', m, #m - 7))), string.sub(m, 1, -9)
    end
    if now < expiry then
      sole, used, smallest = m, struct.unpack('>I4I4', m, 51)
    end
  elseif m then
    lives = now + redis.call('PTTL', main) * 100
  end
  if kind == 'R' then
    used, smallest, differ = struct.unpack('>ddd', m, 11)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', inside, '-inf', now)) do
      drop(id)
    end
  end
  if not me then
    return false
  end
  if sole and string.sub(sole, 19, 34) == me then
    return sole
  end
  local record = record_of(me)
  if record and kind_of(record) == 'W' and struct.unpack('>d', record, 11) <= now then
    leave_line(me)
    return false
  end
  return record
end

local function fits(record)
  local weight, capacity = struct.unpack('>I4I4', record, 51)
  return used + weight <= math.min(smallest, capacity)
end

local function put(record)
  stretched = true
  local id = string.sub(record, 19, 34)
  redis.call('HSET', who, id, record)
  redis.call('ZADD', inside, struct.unpack('>d', record, 11), id)
end

-- A counter of at least so much, larger than every one that was ever given, and remembered as such.
local function fresh(least)
  least = math.max(last + 1, now, least)
  local seen = redis.call('SET', mark, struct.pack('>d', least), 'GET')
  seen = seen and #seen == 8 and struct.unpack('>d', seen)
  if seen and least <= seen then
    least = seen + 1
    redis.call('SET', mark, struct.pack('>d', least))
  end
  return least
end

-- Make the claim of this record a holder from now on, under this counter, and answer it.
local function enter(record, counter)
  local weight, capacity = struct.unpack('>I4I4', record, 51)
  local ttl = struct.unpack('>d', record, 59)
  last = counter
  live(ttl + 10)
  record = 'H0' .. struct.pack('>dd', last, now + 1 + ttl * 100) .. string.sub(record, 19)
  if used == 0 then
    sole = record
  else
    if sole then
      put(sole)
      sole = false
    end
    put(record)
  end
  if used > 0 and capacity ~= smallest then
    differ = 1
  end
  used, smallest = used + weight, math.min(smallest, capacity)
  return last
end

local function refresh(record, counter, expiry)
  record = string.sub(record, 1, 2) .. struct.pack('>dd', counter, expiry) .. string.sub(record, 19)
  if sole then
    sole = record
  else
    put(record)
  end
end

-- Let those at the head of the line enter while they fit. Each is told and is holder when the message
-- arrives; one whose process does not listen is passed over, once. `me` asked and needs no message, and is given a
-- counter of at least `least`.
-- Answers the counter of `me`, or whether somebody who was not passed over is still before it.
local function admit(me, least)
  local passed = 0
  while true do
    if used >= smallest then
      return false, true
    end
    local id = redis.call('LINDEX', line, passed)
    if not id then
      return false, false
    end
    local record = record_of(id)
    if not record or struct.unpack('>d', record, 11) <= now then
      leave_line(id)
    elseif id ~= me and string.sub(record, 2, 2) == '1' then
      passed = passed + 1
    elseif not fits(record) then
      return false, true
    elseif id == me then
      leave_line(id)
      return enter(record, fresh(least)), false
    else
      local wanted = waiting() > 1 and '1' or '0'
      -- Drawn before it is told; what nobody hears is lost, which harms nobody.
      local counter = fresh(0)
      local heard = tell(record, 'G' .. id .. struct.pack('>d', counter) .. string.sub(record, 67, 74) .. wanted)
      if heard == 0 and string.sub(record, 2, 2) == '2' then
        return false, true
      elseif heard == 0 then
        redis.call('HSET', who, id, 'W1' .. string.sub(record, 3))
        passed = passed + 1
      else
        leave_line(id)
        enter(record, counter)
      end
    end
  end
end

-- Stand at the end of the line, and tell those inside if they do not know yet that somebody waits.
local function join(id, record)
  count = redis.call('RPUSH', line, id)
  stretched = stretched or count == 1
  redis.call('HSET', who, id, record)
  if not flagged then
    for _, holder in ipairs(inside_records()) do
      tell(holder, 'W' .. string.sub(holder, 19, 34))
    end
  end
end

-- Write the state back. Every key lives at least as long as the longest-lived claim in it.
local function store(at_least)
  local waited = waiting() > 0
  local graves_live = graves and redis.call('PTTL', gone) or 0
  graves = graves_live > 0
  local flag = string.format('%d', (waited and 1 or 0) + (graves and 2 or 0))
  if not sole and used == 0 and flag == '0' then
    if m then
      redis.call('DEL', main)
    end
    return
  end
  live(at_least)
  local state
  if sole then
    state = 'H' .. flag .. string.sub(sole, 3) .. (flag ~= '0' and struct.pack('>d', lives) or '')
  elseif used > 0 then
    state = 'R' .. flag .. struct.pack('>dddd', last, used, smallest, differ)
  else
    state = 'F' .. flag .. struct.pack('>d', last)
  end
  local ms = math.max(1, math.ceil((lives - now) / 100))
  if used == 0 and not waited then
    ms = graves_live + 10
  end
  redis.call('SET', main, state, 'PX', ms)
  if stretched and (waited or used > 0) then
    redis.call('PEXPIRE', who, ms)
    redis.call('PEXPIRE', line, ms)
    redis.call('PEXPIRE', inside, ms)
  end
end
