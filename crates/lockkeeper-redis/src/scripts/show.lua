-- Everything known about some locks. Writes nothing.
--
--   KEYS[i]  a lock     answer  {now, per lock: {holders, records of the holders, then of those in line…}}
--
-- Whoever is there and has no record of ours is told by an empty one. A lock with a key of another program's is told as
-- {-1, that key}.
local time = redis.call('TIME')
local now = (time[1] - 1577836800) * 100000 + math.floor(time[2] / 10)
local answer = { string.format('%.0f', now) }
--@shape
-- What the server answers, `nil` if the key is of another kind. Whatever else it refuses is told.
local function read(command, key, ...)
  local it = redis.pcall(command, key, ...)
  if type(it) == 'table' and it.err then
    if not string.find(it.err, 'WRONGTYPE', 1, true) then
      error(it)
    end
    return nil
  end
  return it
end

-- Add the records of these, or answer the key that is of another kind.
local function add(seen, who, ids, is_inside)
  for _, id in ipairs(ids) do
    local record = read('HGET', who, id)
    if record == nil then
      return who
    elseif not is_record(record) then
      -- Who waits and has none is forgotten by whoever comes next.
      seen[#seen + 1] = (is_inside or record) and '' or nil
    elseif is_inside or now < struct.unpack('>d', record, 11) then
      seen[#seen + 1] = record
    end
  end
end

local function look(main)
  local m, seen = read('GET', main), { 0 }
  if not m then
    return m == nil and { -1, main } or seen
  elseif not is_state(m) then
    return { -1, main }
  end
  local kind, who, foreign = string.sub(m, 1, 1), main .. ':who', nil
  if kind == 'H' and now < struct.unpack('>d', m, 11) then
    seen[2] = m
  elseif kind == 'R' then
    local ids = read('ZRANGEBYSCORE', main .. ':in', string.format('(%.0f', now), '+inf')
    foreign = not ids and main .. ':in' or add(seen, who, ids, true)
    if ids and #ids == 0 and struct.unpack('>d', m, 11) > 0 and redis.call('ZCARD', main .. ':in') == 0 then
      seen[2] = ''
    end
  end
  seen[1] = #seen - 1
  local flag = string.sub(m, 2, 2)
  if not foreign and (flag == '1' or flag == '3') then
    local ids = read('LRANGE', main .. ':line', 0, -1)
    foreign = not ids and main .. ':line' or add(seen, who, ids, false)
  end
  return foreign and { -1, foreign } or seen
end

for i, main in ipairs(KEYS) do
  answer[i + 1] = look(main)
end
return answer
