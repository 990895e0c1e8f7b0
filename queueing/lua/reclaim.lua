-- Take over deliveries whose lease has lapsed, and remove consumers that are dead and hold nothing.
-- ARGV: consumer, owner, wire, n, lease in milliseconds, then model, lane, ...
local consumer, owner, wire, n, lease = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local out, got = {}, 0
for i = 6, #ARGV, 2 do
  local stream = stream_key(ARGV[i], ARGV[i + 1])
  ensure_group(stream)
  local cursor = '0-0'
  while got < n do
    local claimed = redis.call('XAUTOCLAIM', stream, GROUP, consumer, lease, cursor, 'COUNT', n - got)
    cursor = claimed[1]
    for _, entry in ipairs(claimed[3] or {}) do
      incident('lost', '', 'entry ' .. entry .. ' of ' .. stream .. ' was deleted while it was pending')
      out[#out + 1] = { 'lost', '' }
    end
    got = got + deliver_all(consumer, owner, wire, stream, claimed[2], out)
    if cursor == '0-0' then break end
  end
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, GROUP)) do
    local name, pending = field_of(info, 'name'), field_of(info, 'pending')
    -- Deleting a consumer drops what it has pending, so only one that has nothing and no life left.
    if pending == 0 and name ~= consumer and redis.call('EXISTS', root .. ':lock:' .. name) == 0 then
      redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, name)
    end
  end
end
return out
