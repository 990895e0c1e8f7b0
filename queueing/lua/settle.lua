-- Write the outcome of one attempt. Returns ok, or why nothing was written: stale (a newer attempt has the job),
-- gone (the job is not there any more), or the final state that it already has.
--   done | failed | dead   the end; body is the result or the error
--   retry                  back to the waiting room after delay milliseconds; body is the error
--   release                handed back unstarted: to the head, not counted as a try
-- ARGV: id, stream, entry, attempt, outcome, body, delay, then 0 or 1 each: alone (run it by itself from now on),
-- crashed (it took the engine with it while alone), counted (the retry uses up a try); then a note of the failure,
-- JSON, kept with the job until it is done ('' for none)
local id, stream, entry, attempt, outcome, body = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local delay, alone, crashed, counted = tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10]
local note = ARGV[11] or ''
local NOTES_BYTES = 8192
local key = job_key(id)
local job = redis.call('HMGET', key, 'state', 'attempt', 'model', 'lane', 'tenant')
local state = job[1]
if not state then
  drop_entry(stream, entry)
  return 'gone'
end
if TERMINAL[state] then
  drop_entry(stream, entry)
  return state
end
if outcome == 'done' then
  -- Of any attempt: the work is the same, and somebody waits for it. finish() drops the entry it has now.
  drop_entry(stream, entry)
  if state == 'running' and job[2] ~= attempt then
    redis.call('XADD', root .. ':control', 'MAXLEN', '1024', '*', 'cancel', id)
  end
  finish(id, 'done', 'result', body, entry)
  return 'ok'
end
if job[2] ~= attempt or state ~= 'running' then return 'stale' end
if note ~= '' then
  local notes = redis.call('HGET', key, 'notes')
  -- The first failures tell most; what no longer fits is left out.
  if not notes then
    redis.call('HSET', key, 'notes', note)
  elseif #notes + #note < NOTES_BYTES then
    redis.call('HSET', key, 'notes', notes .. '\n' .. note)
  end
end
if outcome == 'failed' or outcome == 'dead' then
  drop_entry(stream, entry)
  redis.call('HINCRBY', key, 'tries', 1)
  finish(id, outcome, 'error', body, entry)
  return 'ok'
end

drop_entry(stream, entry)
redis.call('HDEL', key, 'entry', 'owner')
redis.call('HSET', key, 'state', 'waiting')
count('waiting', 1)
publish_event(id, attempt, outcome, body)
if outcome == 'retry' then
  if counted == '1' then redis.call('HINCRBY', key, 'tries', 1) end
  redis.call('HSET', key, 'error', body)
  if alone == '1' then redis.call('HSET', key, 'alone', '1') end
  if crashed == '1' then redis.call('HINCRBY', key, 'crashes', 1) end
  count('retried', 1)
end
if delay > 0 then
  redis.call('ZADD', root .. ':delayed', now + delay, id)
  top_up(job[3], job[4])
else
  enqueue(id, job[3], job[4], job[5], outcome == 'release')
end
return 'ok'
