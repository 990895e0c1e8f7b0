-- Cancel a job that has not ended. Returns the state it has now, or an empty string for no such job.
-- The outcome is written here and now; the control stream tells whoever runs it to stop working on it.
local id = ARGV[1]
local job = redis.call('HMGET', job_key(id), 'state', 'deadline')
local state = job[1]
if not state then return '' end
if TERMINAL[state] then return state end
if expire_if_due(id, state, job[2]) then return 'expired' end
finish(id, 'cancelled', 'error', '{"code":"cancelled","message":"the job was cancelled","retryable":false}')
if state == 'running' then redis.call('XADD', root .. ':control', 'MAXLEN', '1024', '*', 'cancel', id) end
return 'cancelled'
