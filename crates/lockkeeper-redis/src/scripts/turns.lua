-- Take many locks at once, those that are free and that nobody waits for. `turn` is asked about the others.
--
--   KEYS[1]    the mark     ARGV[1]       the largest counter that the caller has seen: a new one is larger
--   KEYS[i+1]  a lock       ARGV[2i]      the record of the claim from its byte 19 on
--                           ARGV[2i+1]    ttl in ms
--   answer   per lock: its counter, or 0 if it was not free
--
-- One counter for all: they are different locks.
local mark = KEYS[1]
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
local counter, answer, heads = math.max(now, ARGV[1] + 1), {}, {}
if counter > 281474976710655 then
  -- `turn` says what is wrong.
  for i = 2, #KEYS do
    answer[i - 1] = 0
  end
  return answer
end
local seen = redis.call('SET', mark, struct.pack('>d', counter), 'GET')
seen = seen and #seen == 8 and struct.unpack('>d', seen)
if seen and counter <= seen then
  counter = seen + 1
  redis.call('SET', mark, struct.pack('>d', counter))
end
for i = 2, #KEYS do
  local record, ttl = ARGV[2 * i - 2], ARGV[2 * i - 1]
  -- Most locks of a crowd have the same ttl, and then their records begin alike.
  local head = heads[ttl]
  if not head then
    head = 'H0' .. struct.pack('>dd', counter, now + 1 + ttl * 100)
    heads[ttl] = head
  end
  local m = redis.pcall('SET', KEYS[i], head .. record, 'NX', 'GET', 'PX', ttl)
  answer[i - 1] = m and 0 or counter
end
return answer
