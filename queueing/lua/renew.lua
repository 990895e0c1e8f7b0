-- Renew the leases on deliveries. Returns one word for each: ok, lost (to a newer attempt, or it waits again), gone (the
-- job is not there any more), or the final state it has come to.
-- ARGV: consumer, then stream, entry, id, attempt, ...
local consumer = ARGV[1]
local out = {}
for i = 2, #ARGV, 4 do
  local stream, entry, id, attempt = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local job = redis.call('HMGET', job_key(id), 'state', 'attempt', 'deadline', 'entry', 'model', 'lane', 'tenant')
  local word = job[1] and 'lost' or 'gone'
  if job[1] and TERMINAL[job[1]] then
    word = job[1]
  elseif job[1] == 'running' and job[2] == attempt then
    if expire_if_due(id, job[1], job[3]) then
      word = 'expired'
    else
      -- A bare XCLAIM would steal back what somebody else has taken over.
      local pending = redis.pcall('XPENDING', stream, GROUP, entry, entry, 1)
      if not pending.err and pending[1] and pending[1][2] == consumer then
        local kept = redis.call('XCLAIM', stream, GROUP, consumer, 0, entry, 'JUSTID')
        if #kept == 1 then word = 'ok' end
        pending = kept
      end
      -- A stream that was lost or deleted beneath a running job: nobody else could ever be given it.
      if job[4] == entry and (pending.err or #pending == 0) then
        incident('lost', id, 'the entry of a running job is gone from ' .. stream .. '; it waits again')
        redis.call('HDEL', job_key(id), 'entry', 'owner')
        redis.call('HSET', job_key(id), 'state', 'waiting')
        count('waiting', 1)
        enqueue(id, job[5], job[6], job[7], true)
      end
    end
  end
  out[#out + 1] = word
end
return out
