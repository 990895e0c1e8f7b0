-- Take over deliveries whose lease has lapsed, and remove consumers that are dead and hold nothing. Of others; and of our
-- own where we do not hold them: a take that a dying line carried out late, after we had read what was pending for us.
-- ARGV: consumer, owner, wire, n, lease in milliseconds, number of held entries, those entries, then model, lane, ...
local consumer, owner, wire, n, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local held_count = tonumber(ARGV[6])
local held = {}
for i = 7, 6 + held_count do held[ARGV[i]] = true end
local out, got = {}, 0
for i = 7 + held_count, #ARGV, 2 do
  local stream = stream_key(ARGV[i], ARGV[i + 1])
  ensure_group(stream)
  local start = '-'
  -- XAUTOCLAIM would take what we hold as well: a new attempt of what is running here, renewed although it may hang.
  while got < n do
    local lapsed = redis.call('XPENDING', stream, GROUP, 'IDLE', lease, start, '+', 100)
    for _, item in ipairs(lapsed) do
      local entry, holder = item[1], item[2]
      start = '(' .. entry
      if (holder ~= consumer or not held[entry]) and got < n then
        local claimed = redis.call('XCLAIM', stream, GROUP, consumer, lease, entry)
        -- Claiming an entry that is not in the stream any more removes it from the pending list and returns nothing.
        if #claimed == 0 or not claimed[1] then claimed = { { entry, false } } end
        got = got + deliver_all(owner, wire, stream, claimed, out)
      end
    end
    if #lapsed < 100 then break end
  end
  top_up(ARGV[i], ARGV[i + 1])
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, GROUP)) do
    local name, pending = field_of(info, 'name'), field_of(info, 'pending')
    -- Deleting a consumer drops what it has pending, so only one that has nothing and no life left.
    if pending == 0 and name ~= consumer and redis.call('EXISTS', root .. ':lock:' .. name) == 0 then
      redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, name)
    end
  end
end
return out
