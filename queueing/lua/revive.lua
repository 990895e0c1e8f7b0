-- Give a dead job another life. Returns revived, or why not: '' for no such job, input_gone where the bytes of its
-- upload have expired, or the state of a job that is not dead.
local id = ARGV[1]
local key = job_key(id)
local job = redis.call('HMGET', key, 'state', 'model', 'lane', 'tenant', 'bytes', 'idem')
if not job[1] then return '' end
if job[1] ~= 'dead' then return job[1] end
if job[5] and redis.call('EXISTS', inline_key(id)) == 0 then return 'input_gone' end
-- The attempt stays as it is: it is the fence, and must never repeat.
redis.call('HDEL', key, 'error', 'finished', 'tries', 'alone', 'crashes', 'deadline')
redis.call('HSET', key, 'state', 'waiting')
redis.call('PERSIST', key)
redis.call('PERSIST', events_key(id))
if job[6] then redis.call('PERSIST', root .. ':idem:' .. job[4] .. ':' .. job[6]) end
if job[5] then
  redis.call('PERSIST', inline_key(id))
  count('bytes', tonumber(job[5]))
end
redis.call('ZREM', root .. ':dead', id)
count('waiting', 1)
count('revived', 1)
enqueue(id, job[2], job[3], job[4], false)
return 'revived'
