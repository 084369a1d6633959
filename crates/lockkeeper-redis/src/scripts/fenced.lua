-- Refuse a stale fence, raise the fences of all keys to ours, then do the caller's work in the same step.
--
--   KEYS[1..n]     the caller's keys      ARGV[1]  our fence, 20 digits
--   KEYS[n+1..2n]  their fences           ARGV[2]  ms to keep the fences, 0 for ever
--                                         ARGV[3…] the caller's arguments
--
-- The caller's script follows and sees its own keys and arguments only. Fences have more bits than a number of
-- Lua, so they are compared by halves.
local KEYS, ARGV = (function(keys, args)
  local n, fence, kept = #keys / 2, args[1], args[2]
  local high, low = tonumber(string.sub(fence, 1, 10)), tonumber(string.sub(fence, 11))
  for i = 1, n do
    local seen = redis.call('GET', keys[n + i])
    if seen then
      local seen_high, seen_low = tonumber(string.sub(seen, 1, 10)), tonumber(string.sub(seen, 11))
      if not seen_high or not seen_low or #seen ~= 20 then
        error({ err = 'FOREIGN the key ' .. keys[n + i] .. ' holds something that is not a fence' })
      end
      if high < seen_high or high == seen_high and low < seen_low then
        error({ err = 'STALEFENCE ' .. i .. ' ' .. seen })
      end
    end
  end
  for i = 1, n do
    if kept == '0' then
      redis.call('SET', keys[n + i], fence)
    else
      redis.call('SET', keys[n + i], fence, 'PX', kept)
    end
  end
  local own_keys, own_args = {}, {}
  for i = 1, n do
    own_keys[i] = keys[i]
  end
  for i = 3, #args do
    own_args[i - 2] = args[i]
  end
  return own_keys, own_args
end)(KEYS, ARGV)
