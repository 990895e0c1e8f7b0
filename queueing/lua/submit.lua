-- Admit a job, once. Returns {verdict, job id, state, milliseconds}.
--   ok        written; exists  the same job or the same idempotency key was there already, with the same digest
--   conflict  that id or key belongs to another payload; full  too much waits: come back after so many milliseconds
-- ARGV: id, payload, model, lane, tenant, wire, digest, deadline, not_before, ttl, idem, max_waiting, max_bytes,
-- hook (who is told the end: 'http', 'rq' or ''), what the hook needs to know [, inline bytes]
local id, payload, model, lane, tenant = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local wire, digest, deadline, not_before = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local ttl, idem, max_waiting, max_bytes = ARGV[10], ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13])
local hook, hook_to, inline = ARGV[14], ARGV[15], ARGV[16]

local function known(other, its_digest)
  local state = redis.call('HGET', job_key(other), 'state')
  if not state then return nil end
  return { its_digest == digest and 'exists' or 'conflict', other, state, 0 }
end

local idem_key = root .. ':idem:' .. tenant .. ':' .. idem
if idem ~= '' then
  local held = redis.call('GET', idem_key)
  if held then
    local other, its_digest = string.match(held, '^(%S+) (%S+)$')
    local answer = known(other, its_digest)
    if answer then return answer end
  end
end
-- A client that lost the reply asks again with the same id.
local again = redis.call('HGET', job_key(id), 'digest')
if again then return known(id, again) end

-- What has expired, in lanes that nobody serves too, holds no place.
expire_due(20)
local counts = redis.call('HMGET', counts_key, 'waiting', 'bytes')
local waiting, bytes = tonumber(counts[1] or 0), tonumber(counts[2] or 0)
local too_long = redis.call('LLEN', backlog_key(model, lane, tenant)) >= max_waiting + 16
if waiting >= max_waiting or too_long or (inline and bytes + #inline > max_bytes) then
  -- As long as the queue would take to start one job in a hundred, at its own pace of late.
  local rate = tonumber(redis.call('HGET', counts_key, 'rate') or 0)
  local wanted = math.max(1, waiting / 100)
  local pause = 5000
  if rate > 0 then pause = math.max(100, math.min(60000, 1000 * wanted / rate)) end
  return { 'full', id, '', math.floor(pause) }
end

local key = job_key(id)
redis.call('HSET', key, 'payload', payload, 'state', 'waiting', 'model', model, 'lane', lane, 'tenant', tenant,
  'wire', wire, 'digest', digest, 'created', now, 'ttl', ttl)
if deadline ~= '' then
  redis.call('HSET', key, 'deadline', deadline)
  redis.call('ZADD', root .. ':deadlines', deadline, id)
end
if idem ~= '' then
  redis.call('HSET', key, 'idem', idem)
  redis.call('SET', idem_key, id .. ' ' .. digest)
end
if hook ~= '' then
  redis.call('HSET', key, 'hook', hook, 'hook_to', hook_to)
  if hook == 'rq' then redis.call('ZADD', root .. ':bridged', now, id) end
end
if inline then
  redis.call('SET', inline_key(id), inline)
  redis.call('HSET', key, 'bytes', #inline)
  count('bytes', #inline)
end
count('waiting', 1)
count('submitted', 1)
if not_before ~= '' and tonumber(not_before) > now then
  redis.call('ZADD', root .. ':delayed', not_before, id)
else
  enqueue(id, model, lane, tenant, false)
end
return { 'ok', id, 'waiting', 0 }
