-- A worker says goodbye: its lock and its health go, and its consumers where nothing is pending.
-- ARGV: consumer, lock value, then model, lane, ...
local consumer = ARGV[1]
if redis.call('GET', root .. ':lock:' .. consumer) ~= ARGV[2] then return 0 end
redis.call('DEL', root .. ':lock:' .. consumer, root .. ':worker:' .. consumer)
redis.call('SREM', root .. ':workers', consumer)
for i = 3, #ARGV, 2 do
  local stream = stream_key(ARGV[i], ARGV[i + 1])
  local pending = redis.pcall('XPENDING', stream, GROUP, '-', '+', 1, consumer)
  if not pending.err and #pending == 0 then redis.pcall('XGROUP', 'DELCONSUMER', stream, GROUP, consumer) end
end
return 1
