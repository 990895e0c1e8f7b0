-- Read up to n jobs, over streams in the order given. Returns a list of {'job', ...}, {'lost', id}, {'newer', id}, {'junk', ''}.
-- XREADGROUP's own COUNT is per stream; here n holds over all of them.
-- ARGV: consumer, owner, wire, n, then model, lane, model, lane, ...
local consumer, owner, wire, n = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
promote_due()
local out, got = {}, 0
for i = 5, #ARGV, 2 do
  local model, lane = ARGV[i], ARGV[i + 1]
  local stream = stream_key(model, lane)
  while got < n do
    local read = redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', n - got, 'STREAMS', stream, '>')
    if read and read.err then
      -- NOGROUP: a fresh server, or one that lost its data.
      ensure_group(stream)
      read = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', n - got, 'STREAMS', stream, '>')
    end
    if not read then
      if top_up(model, lane) == 0 then break end
    else
      got = got + deliver_all(consumer, owner, wire, stream, read[1][2], out)
    end
  end
  top_up(model, lane)
end
return out
