-- Write a memo, if it still is as the caller has seen it.
--
--   KEYS[1]  the memo: its version in decimal digits, a blank, the value
--   KEYS[2]  the last version given to any memo of this server (of this tag, on a cluster); it stays when memos go
--   ARGV     the version seen, or nothing; how long to keep it in ms, 0 to remove it; the value
--   answer   {1, version}, or {0, what there is}
local there = redis.call('GET', KEYS[1])
local seen = there and string.match(there, '^%d+') or ''
if seen ~= ARGV[1] then
  return { 0, there }
end
local version = string.format('%.0f', (redis.call('GET', KEYS[2]) or 0) + 1)
redis.call('SET', KEYS[2], version)
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], version .. ' ' .. ARGV[3], 'PX', ARGV[2])
end
return { 1, version }
