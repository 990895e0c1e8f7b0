-- What became of telling an end: sent, retry after delay milliseconds, or dead. Returns ok, gone, or stale where somebody
-- else was given it since. ARGV: kind of hook, id, seq, outcome, delay, note of the failure ('' for none)
local kind, id, seq, outcome, delay, note = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local key, due_key = job_key(id), root .. ':hooks:' .. kind
local job = redis.call('HMGET', key, 'state', 'hook_seq', 'ttl', 'finished')
if not job[1] then
  redis.call('ZREM', due_key, id)
  return 'gone'
end
if job[2] ~= seq or not TERMINAL[job[1]] then return 'stale' end
if outcome == 'retry' then
  redis.call('HSET', key, 'hook_error', note)
  redis.call('ZADD', due_key, now + delay, id)
  return 'ok'
end
redis.call('ZREM', due_key, id)
redis.call('HSET', key, 'hook_state', outcome)
local ttl = tonumber(job[3]) or 86400
if job[1] == 'dead' or outcome == 'dead' then ttl = math.max(ttl, DEAD_TTL_S) end
if outcome == 'dead' then
  redis.call('HSET', key, 'hook_error', note)
  local undelivered = root .. ':undelivered'
  redis.call('ZADD', undelivered, now, id)
  redis.call('ZREMRANGEBYRANK', undelivered, 0, -1 - DEAD_CAP)
  count('hooks_dead', 1)
else
  redis.call('HDEL', key, 'hook_error')
  count('hooks_sent', 1)
end
-- The outcome was kept for the hook's sake; from now on as long as was asked for.
redis.call('EXPIRE', key, math.max(1, math.ceil(ttl - (now - tonumber(job[4] or now)) / 1000)))
return 'ok'
