-- Tell an end again that nobody took. Returns again, '' for no such job, or the state of a hook that is not dead.
-- ARGV: id
local id = ARGV[1]
local key = job_key(id)
local job = redis.call('HMGET', key, 'state', 'hook', 'hook_state')
if not job[1] then
  redis.call('ZREM', root .. ':undelivered', id)
  return ''
end
if not job[2] then return 'none' end
if job[3] ~= 'dead' then return job[3] or 'none' end
redis.call('HSET', key, 'hook_state', 'pending', 'hook_tries', 0)
redis.call('EXPIRE', key, HOOK_TTL_S)
redis.call('ZREM', root .. ':undelivered', id)
redis.call('ZADD', root .. ':hooks:' .. job[2], now, id)
return 'again'
