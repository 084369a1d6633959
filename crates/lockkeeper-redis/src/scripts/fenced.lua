-- Refuse a stale fence, raise the fences of all keys to ours, then do the caller's work in the same step.
--
--   KEYS[1..n]     the caller's keys      ARGV[1]  our fence, 20 digits; an S behind it if it is that of one who shares
--   KEYS[n+1..2n]  their fences           ARGV[2]  ms to keep the fences, 0 for ever
--                                         ARGV[3…] the caller's arguments
--
-- A fence is kept as 20 digits: the largest exclusive one. While shared ones have come after that, 20 more follow: the
-- largest of them. Of those who share none refuses another; an exclusive one must be larger than all of them, and then
-- they need not be remembered.
--
-- The caller's script follows and sees its own keys and arguments only. Fences have more bits than a number of
-- Lua, so they are compared by halves.
local KEYS, ARGV = (function(keys, args)
  local n, kept = #keys / 2, args[2]
  local fence, shares = string.sub(args[1], 1, 20), #args[1] > 20

  local function is_less(one, other)
    local high, other_high = tonumber(string.sub(one, 1, 10)), tonumber(string.sub(other, 1, 10))
    if high ~= other_high then
      return high < other_high
    end
    return tonumber(string.sub(one, 11)) < tonumber(string.sub(other, 11))
  end

  local raised = {}
  for i = 1, n do
    local seen = redis.call('GET', keys[n + i])
    local exclusive, shared = '00000000000000000000', false
    if seen then
      if not string.find(seen, '^%d+$') or #seen ~= 20 and #seen ~= 40 then
        error({ err = 'FOREIGN the key ' .. keys[n + i] .. ' holds something that is not a fence' })
      end
      exclusive, shared = string.sub(seen, 1, 20), #seen == 40 and string.sub(seen, 21)
    end
    if is_less(fence, exclusive) then
      error({ err = 'STALEFENCE ' .. i .. ' ' .. exclusive })
    end
    if not shares then
      if shared and not is_less(shared, fence) then
        error({ err = 'STALEFENCE ' .. i .. ' ' .. shared })
      end
      raised[i] = fence
    elseif shared and is_less(fence, shared) then
      raised[i] = seen
    else
      raised[i] = exclusive .. fence
    end
  end
  for i = 1, n do
    if kept == '0' then
      redis.call('SET', keys[n + i], raised[i])
    else
      redis.call('SET', keys[n + i], raised[i], 'PX', kept)
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
