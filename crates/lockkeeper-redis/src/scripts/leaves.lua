-- Give back many locks at once, those that nobody waits for. `leave` is asked about the others.
--
--   KEYS[i]  a lock     ARGV[i]  id of the claim
--   answer   one digit per lock: 1 done, 0 ask `leave`
local answer = {}
for i, main in ipairs(KEYS) do
  local m = redis.pcall('GET', main)
  if not m then
    answer[i] = '1'
  elseif type(m) == 'string' and string.sub(m, 1, 2) == 'H0' then
    if string.sub(m, 19, 34) == ARGV[i] then
      redis.call('DEL', main)
    end
    answer[i] = '1'
  else
    answer[i] = '0'
  end
end
return table.concat(answer)
