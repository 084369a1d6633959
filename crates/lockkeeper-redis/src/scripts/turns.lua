-- Take many locks at once, those that are free and that nobody waits for. `turn` is asked about the others.
--
--   KEYS[i]  a lock     ARGV[2i-1]  the record of the claim from its byte 19 on     ARGV[2i]  ttl in ms
--   answer   per lock: its counter, or 0 if it was not free
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
-- Most locks of a crowd have the same ttl, and then their records begin alike.
local answer, heads = {}, {}
for i, main in ipairs(KEYS) do
  local ttl = ARGV[2 * i]
  local head = heads[ttl]
  if not head then
    head = 'H0' .. struct.pack('>dd', now, now + 1 + ttl * 100)
    heads[ttl] = head
  end
  local m = redis.pcall('SET', main, head .. ARGV[2 * i - 1], 'NX', 'GET', 'PX', ttl)
  answer[i] = m and 0 or now
end
return answer
