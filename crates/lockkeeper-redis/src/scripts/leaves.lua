-- Give back many locks at once, those that nobody waits for. `leave` is asked about the others.
--
--   KEYS[i]  a lock     ARGV[i]  id of the claim
--   answer   one digit per lock: 1 done, 0 ask `leave`
--
-- Two calls, however many locks: MGET, DEL.
local found, answer, mine = redis.call('MGET', unpack(KEYS)), {}, {}
for i, main in ipairs(KEYS) do
  local m = found[i]
  if not m then
    answer[i] = '1'
  elseif string.sub(m, 1, 2) == 'H0' then
    if string.sub(m, 19, 34) == ARGV[i] then
      mine[#mine + 1] = main
    end
    answer[i] = '1'
  else
    answer[i] = '0'
  end
end
if mine[1] then
  redis.call('DEL', unpack(mine))
end
return table.concat(answer)
