-- Forget a dead job and all that it left. Returns dead where it was, '' for no such job, or the state of one that is
-- not dead and is left alone.
local id = ARGV[1]
local key = job_key(id)
local job = redis.call('HMGET', key, 'state', 'tenant', 'idem')
if not job[1] then
  redis.call('ZREM', root .. ':dead', id)
  return ''
end
if job[1] ~= 'dead' then return job[1] end
redis.call('DEL', key, inline_key(id), events_key(id))
if job[3] then redis.call('DEL', root .. ':idem:' .. job[2] .. ':' .. job[3]) end
redis.call('ZREM', root .. ':dead', id)
return 'dead'
