-- Ends that somebody must be told, and for how long nobody else is given them. Returns a list of
-- {id, seq, tries, state, payload, hook_to, result, error, created, finished, attempt}.
-- An end that was taken and not answered for (lua/hook_end.lua) is handed out again when the hold is over.
-- ARGV: kind of hook, n, hold in milliseconds
local kind, n, hold = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local due_key = root .. ':hooks:' .. kind
local out = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due_key, '-inf', now, 'LIMIT', 0, n)) do
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'state', 'payload', 'hook_to', 'result', 'error', 'created', 'finished', 'attempt')
  if not job[1] then
    redis.call('ZREM', due_key, id)
    incident('hook', id, 'the job is gone before its ' .. kind .. ' hook was told')
  elseif not TERMINAL[job[1]] then
    -- Revived from the dead list: its next end is told.
    redis.call('ZREM', due_key, id)
  else
    redis.call('ZADD', due_key, now + hold, id)
    local tries = redis.call('HINCRBY', key, 'hook_tries', 1)
    -- The fence: it never falls, whatever becomes of tries.
    local seq = redis.call('HINCRBY', key, 'hook_seq', 1)
    out[#out + 1] = { id, seq, tries, job[1], job[2] or '', job[3] or '', job[1] == 'done' and job[4] or '', job[5] or '',
      job[6] or '0', job[7] or '0', job[8] or '0' }
  end
end
return out
