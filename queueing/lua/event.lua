-- Publish events of a running attempt. Returns for each 1, or 0 where the attempt is no longer the current one.
-- ARGV: id, attempt, type, data, ...
local out = {}
for i = 1, #ARGV, 4 do
  local id, attempt = ARGV[i], ARGV[i + 1]
  local job = redis.call('HMGET', job_key(id), 'state', 'attempt')
  if job[1] == 'running' and job[2] == attempt then
    publish_event(id, attempt, ARGV[i + 2], ARGV[i + 3])
    out[#out + 1] = 1
  else
    out[#out + 1] = 0
  end
end
return out
