-- Take the lock on a consumer name. Returns {incarnation, ''} or {0, value of the holder}.
-- ARGV: consumer, value, time to live in milliseconds, the value that may be taken over ('' for none)
local lock = root .. ':lock:' .. ARGV[1]
local held = redis.call('GET', lock)
if held and held ~= ARGV[4] then return { 0, held } end
redis.call('SET', lock, ARGV[2], 'PX', ARGV[3])
local life = root .. ':life:' .. ARGV[1]
local incarnation = redis.call('INCR', life)
redis.call('PEXPIRE', life, LIFE_MS)
return { incarnation, '' }
