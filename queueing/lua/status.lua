-- All fields of a job's hash, and Redis' time; {} for no such job. A waiting job whose deadline has passed ends here,
-- so that its state is right without any worker.
local id = ARGV[1]
local job = redis.call('HMGET', job_key(id), 'state', 'deadline')
if not job[1] then return {} end
expire_if_due(id, job[1], job[2])
local fields = redis.call('HGETALL', job_key(id))
fields[#fields + 1] = 'now'
fields[#fields + 1] = tostring(now)
return fields
