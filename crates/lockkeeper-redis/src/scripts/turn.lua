-- Take a place if the claim has none, keep it alive if it does, and tell whether it is its turn.
--
--   KEYS[1]  the lock                 ARGV[1]  the record of the claim from its byte 19 on
--                                     ARGV[2]  ttl in ms
--                                     ARGV[3]  1 patient, 0 impatient
--                                     ARGV[4]  a counter to outdo, if the server's clock was set back
--   answer   counter                            held, nobody waits behind
--            {1, counter}                       held, somebody waits behind
--            {0, ticks until a holder expires, claims ahead}
--            {-1}                               refused: this claim has left, and this call comes too late
--
-- A free lock that nobody waits for costs two calls: TIME, SET. One that is held alone and already waited for
-- costs three more: HGET, RPUSH, HSET.
local main, claim, ttl = KEYS[1], ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
local expiry = now + 1 + ttl * 100
local m = redis.call('SET', main, 'H0' .. struct.pack('>dd', now, expiry) .. claim, 'NX', 'GET', 'PX', ttl)
if not m then
  return now
end
local me, flag = string.sub(claim, 1, 16), string.sub(m, 2, 2)
if (flag == '2' or flag == '3') and redis.call('HGET', main .. ':gone', me) then
  return { -1 }
end
if ARGV[3] == '1' and string.sub(m, 1, 2) == 'H1' then
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

local function held(counter)
  store(ttl + 10)
  return waiting() > 0 and { 1, counter } or counter
end

if mine and kind_of(mine) == 'H' then
  local counter = struct.unpack('>d', mine, 3)
  if ARGV[4] then
    counter = math.max(counter, ARGV[4] + 1)
    last = math.max(last, counter)
  end
  refresh(mine, counter, expiry)
  return held(counter)
end
local since = mine and struct.unpack('>d', mine, 3) or now
local record = 'W0' .. struct.pack('>dd', since, expiry) .. claim
if mine then
  redis.call('HSET', who, me, record)
end
local counter, blocked = admit(me)
if not counter and not mine then
  if not blocked and fits(record) then
    counter = enter(record)
  elseif ARGV[3] == '1' then
    join(me, record)
  end
end
if counter then
  return held(counter)
end
local first = sole and struct.unpack('>d', sole, 11)
  or used > 0 and redis.call('ZRANGE', inside, 0, 0, 'WITHSCORES')[2]
  or expiry
-- Whoever just joined is last, and whoever did not join has all before it.
local ahead = mine and redis.call('LPOS', line, me) or waiting() - (ARGV[3] == '1' and 1 or 0)
store(ttl + 10)
return { 0, first - now, ahead + holders() }
