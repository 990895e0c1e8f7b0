-- Renew the leases on deliveries. Returns one word for each: ok, lost, or the final state it has come to.
-- ARGV: consumer, then stream, entry, id, attempt, ...
local consumer = ARGV[1]
local out = {}
for i = 2, #ARGV, 4 do
  local stream, entry, id, attempt = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local job = redis.call('HMGET', job_key(id), 'state', 'attempt', 'deadline')
  local word = 'lost'
  if job[1] and TERMINAL[job[1]] then
    word = job[1]
  elseif job[1] == 'running' and job[2] == attempt then
    if expire_if_due(id, job[1], job[3]) then
      word = 'expired'
    else
      -- A bare XCLAIM would steal back what somebody else has taken over.
      local pending = redis.pcall('XPENDING', stream, GROUP, entry, entry, 1)
      if not pending.err and pending[1] and pending[1][2] == consumer then
        redis.call('XCLAIM', stream, GROUP, consumer, 0, entry, 'JUSTID')
        word = 'ok'
      end
    end
  end
  out[#out + 1] = word
end
return out
