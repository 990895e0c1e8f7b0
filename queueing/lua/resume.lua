-- What is already ours: entries pending for this consumer that it does not hold. A worker reads these first, after
-- every start and every reconnect: a reply lost on the way leaves them there, and '>' never returns them.
-- ARGV: consumer, owner, wire, number of held entries, those entries, then model, lane, ...
local consumer, owner, wire, held_count = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local held = {}
for i = 5, 4 + held_count do held[ARGV[i]] = true end
local out = {}
for i = 5 + held_count, #ARGV, 2 do
  local stream = stream_key(ARGV[i], ARGV[i + 1])
  ensure_group(stream)
  local cursor = '0'
  while true do
    local read = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', 100, 'STREAMS', stream, cursor)
    local entries = read and read[1][2] or {}
    if #entries == 0 then break end
    local mine = {}
    for _, item in ipairs(entries) do
      cursor = item[1]
      if not held[item[1]] then
        -- Reading one's own pending entries again does not renew the lease on them.
        redis.call('XCLAIM', stream, GROUP, consumer, 0, item[1], 'JUSTID')
        mine[#mine + 1] = item
      end
    end
    deliver_all(consumer, owner, wire, stream, mine, out)
  end
end
return out
