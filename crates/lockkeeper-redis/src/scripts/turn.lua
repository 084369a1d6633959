-- Take a place if the claim has none, keep it alive if it does, and tell whether it is its turn.
--
--   KEYS[1]  the lock                 ARGV[1]  the record of the claim from its byte 19 on
--   KEYS[2]  the mark                 ARGV[2]  ttl in ms
--                                     ARGV[3]  what a new counter is at least; negative for the impatient
--                                     ARGV[4]  if given: what is held must be that much as well
--   answer   counter                            held, nobody waits behind
--            {1, counter}                       held, somebody waits behind
--            {0, ticks until a holder expires, claims ahead, smallest capacity of holders, 1 if one may be idle}
--                                               the last two only if holders are looked at, the last for those who will not wait
--            {-1}                               refused: this claim has left, and this call comes too late
--            {-2}                               refused: counters are used up, by a clock far in the future
--
-- A free lock that nobody waits for costs three calls: TIME, SET, SET. One that is held alone and already waited for
-- costs three more than the first two: HGET, RPUSH, HSET.
local main, mark, claim, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
local least, expiry = ARGV[3] + 0, now + 1 + ttl * 100
local joins = least > 0
local counter = joins and least or -least
if counter < now then
  counter = now
end
if counter > 281474976710655 then
  return { -2 }
end
local packed = struct.pack('>d', counter)
local m = redis.call('SET', main, 'H0' .. packed .. struct.pack('>d', expiry) .. claim, 'NX', 'GET', 'PX', ttl)
if not m then
  local seen = redis.call('SET', mark, packed, 'GET')
  seen = seen and #seen == 8 and struct.unpack('>d', seen)
  if seen and counter <= seen then
    -- Two grants in one tick, or the clock was set back.
    counter = seen + 1
    redis.call('SET', mark, struct.pack('>d', counter))
    redis.call('SETRANGE', main, 2, struct.pack('>d', counter))
  end
  return counter
end
local me, flag = string.sub(claim, 1, 16), string.sub(m, 2, 2)
if (flag == '2' or flag == '3') and redis.call('HGET', main .. ':gone', me) then
  return { -1 }
end
if joins and #m >= 82 and string.sub(m, 1, 2) == 'H1' then
  local ends, weight, capacity = struct.unpack('>d', m, 11), struct.unpack('>I4I4', m, 51)
  local enough = now + (ttl + 10) * 100 <= struct.unpack('>d', m, #m - 7)
  if now < ends and enough and capacity <= weight and string.sub(m, 19, 34) ~= me
    and redis.call('HGET', main .. ':who', me) == false then
    local place = redis.call('RPUSH', main .. ':line', me)
    redis.call('HSET', main .. ':who', me, 'W0' .. struct.pack('>dd', now, expiry) .. claim)
    if place == 1 then
      redis.call('PEXPIRE', main .. ':line', ttl + 10)
      redis.call('PEXPIRE', main .. ':who', ttl + 10)
    end
    return { 0, ends - now, place }
  end
end
--@room
local mine = load_room(me)

local function held(number)
  store(ttl + 10)
  return waiting() > 0 and { 1, number } or number
end

if mine and kind_of(mine) == 'H' then
  local number = struct.unpack('>d', mine, 3)
  if ARGV[4] and number < counter then
    last = fresh(counter)
    number = last
  end
  refresh(mine, number, expiry)
  return held(number)
end
local since = mine and struct.unpack('>d', mine, 3) or now
local passed = mine and string.sub(mine, 2, 2) ~= '0'
local record = (passed and 'W2' or 'W0') .. struct.pack('>dd', since, expiry) .. claim
if mine then
  redis.call('HSET', who, me, record)
end
local given, blocked = admit(me, counter)
if not given and not mine then
  if not blocked and fits(record) then
    given = enter(record, fresh(counter))
  elseif joins then
    join(me, record)
  end
end
if given then
  return held(given)
end
local first = sole and struct.unpack('>d', sole, 11)
  or used > 0 and redis.call('ZRANGE', inside, 0, 0, 'WITHSCORES')[2]
  or expiry
-- Whoever just joined is last, and whoever did not join has all before it.
local ahead = mine and redis.call('LPOS', line, me) or waiting() - (joins and 1 or 0)
-- Whoever asks again at the head may wait for what is idle, in a process that missed its message. Whoever only tries is told.
local idle = 0
if not joins or mine and ahead == 0 then
  for _, holder in ipairs(inside_records()) do
    if string.find(holder, 'lockkeeper.warm', 75, true) then
      idle = 1
      if mine then
        tell(holder, 'W' .. string.sub(holder, 19, 34))
      end
    end
  end
end
-- Whoever only tried leaves nothing behind, no longer life of the keys either.
store((mine or joins) and ttl + 10 or 0)
return { 0, first - now, ahead + holders(), smallest, idle }
