-- Whether bytes are what we write: as long as what is read from them, with numbers that can be reckoned with. The layout is told
-- in `room`.
local function is_number(bytes, at)
  local number = struct.unpack('>d', bytes, at)
  return number >= 0 and number < 9007199254740992
end

local function is_record(it)
  return it and #it >= 74 and is_number(it, 11) and is_number(it, 59)
end

local function is_state(m)
  local kind, flag = string.match(m, '^([HRF])([0-3])')
  if kind == 'H' then
    return is_record(m) and is_number(m, 3) and (flag == '0' or #m >= 82 and is_number(m, #m - 7))
  end
  return (kind == 'R' and #m >= 34 or kind == 'F' and #m >= 10) and is_number(m, 3)
end
