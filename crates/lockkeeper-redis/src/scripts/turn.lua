-- Take a place if the claim has none, keep it alive if it does, and tell whether it is its turn.
--
--   KEYS[1]  the lock                 ARGV[1]  head: id, process, weight, capacity (40 bytes)
--                                     ARGV[2]  ttl in ms
--                                     ARGV[3]  number of this ask, counted by the caller
--                                     ARGV[4]  1 patient, 0 impatient
--                                     ARGV[5]  name and label, for people
--   answer   counter                            held, nobody waits behind
--            {1, counter}                       held, somebody waits behind
--            {0, ticks until a holder expires, claims ahead}
--
-- A free lock that nobody waits for costs three calls: GET, TIME, SET.
local main, head, ttl = KEYS[1], ARGV[1], tonumber(ARGV[2])
local m = redis.call('GET', main)
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
if not m or string.sub(m, 1, 2) == 'F0' then
  local counter = math.max(m and struct.unpack('>d', m, 3) + 1 or 1, now)
  redis.call('SET', main, 'H0' .. struct.pack('>dd', counter, now + 1 + ttl * 100) .. head
    .. struct.pack('>ddd', now, ttl, ARGV[3]) .. ARGV[5], 'PX', ttl + 10)
  return counter
end
--@room
local me = string.sub(head, 1, 16)
local mine = load_room(me)

local function held(counter)
  store(ttl)
  return waiting() > 0 and { 1, counter } or counter
end

if mine and kind_of(mine) == 'H' then
  local counter = struct.unpack('>d', mine, 3)
  refresh(mine, now + 1 + ttl * 100)
  return held(counter)
end
local claim = 'W0' .. struct.pack('>dd', 0, now + 1 + ttl * 100) .. head
  .. struct.pack('>ddd', mine and struct.unpack('>d', mine, 59) or now, ttl, ARGV[3]) .. ARGV[5]
if mine then
  redis.call('HSET', who, me, claim)
end
local counter, blocked = admit(me)
if not counter and not mine then
  if not blocked and fits(claim) then
    counter = enter(claim)
  elseif ARGV[4] == '1' then
    join(me, claim)
  end
end
if counter then
  return held(counter)
end
local first = sole and struct.unpack('>d', sole, 11)
  or used > 0 and redis.call('ZRANGE', inside, 0, 0, 'WITHSCORES')[2]
  or now + ttl * 100
local ahead = redis.call('ZRANK', line, me) or waiting()
store(ttl)
return { 0, first - now, ahead + holders() }
