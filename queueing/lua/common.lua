-- Shared by every script: prepended to each of them when it is loaded.
-- KEYS[1] is the root of the queue; every other key is derived from it and so has the same hash tag.
-- Nothing here parses a payload, and no time comes from anywhere but Redis.

local root = KEYS[1]
local GROUP = 'workers'

-- Unread entries that each stream is topped up to. A tenant that comes late waits behind at most this
-- many jobs of the others, so it is short; a worker that wants more at once has it topped up again.
local WINDOW = 16
local EVENT_CAP = 256
local EVENT_GRACE_S = 60
-- Bytes of an outcome that the bell carries along, so that who waits need not ask for it.
local BELL_BODY = 16384
local DEAD_CAP = 10000
local DEAD_TTL_S = 7 * 86400
-- A consumer's count of incarnations outlives its last beat by this. Nothing is fenced by it (the attempt is the fence):
-- it tells lives apart in health and in a job's owner. So longer than any worker sleeps, and than the dead are kept.
local LIFE_MS = 30 * 86400 * 1000
-- A job whose end somebody must still be told is kept for so long at least.
local HOOK_TTL_S = 7 * 86400
-- List items that one script may look through: about a millisecond.
local SEARCHED = 10000

local function job_key(id) return root .. ':job:' .. id end
local function inline_key(id) return root .. ':inline:' .. id end
local function events_key(id) return root .. ':events:' .. id end
local function bell(id) return root .. ':bell:' .. id end
local function stream_key(model, lane) return root .. ':stream:' .. model .. ':' .. lane end
local function backlog_key(model, lane, tenant) return root .. ':backlog:' .. model .. ':' .. lane .. ':' .. tenant end
local function ring_key(model, lane) return root .. ':ring:' .. model .. ':' .. lane end
local counts_key = root .. ':counts'

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local TERMINAL = { done = true, failed = true, cancelled = true, expired = true, dead = true }

local function count(field, by) redis.call('HINCRBY', counts_key, field, by) end

local function incident(what, id, detail)
  redis.call('XADD', root .. ':incidents', 'MAXLEN', '256', '*', 'what', what, 'job', id, 'detail', detail)
  count('incidents', 1)
end

-- Something is missing that jobs may hang on: the sweep goes over all of them, now. Two passes, because one that is
-- under way may have gone by already.
local function suspect_loss() redis.call('HSET', root .. ':sweep', 'passes', 2) end

-- From 0, never from $: what was written before the group existed must be read.
local function ensure_group(stream)
  local made = redis.pcall('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
  -- Where others wait already, this stream may be one that was lost with what it held.
  if not made.err and tonumber(redis.call('HGET', counts_key, 'waiting') or 0) > 1 then suspect_loss() end
end

-- An entry stays in the stream until it is settled, so what is unread is what is there less what is pending.
local function unread_count(stream)
  local pending = redis.pcall('XPENDING', stream, GROUP)
  if pending.err then
    ensure_group(stream)
    return redis.call('XLEN', stream)
  end
  return math.max(0, redis.call('XLEN', stream) - pending[1])
end

local function drop_entry(stream, entry)
  redis.pcall('XACK', stream, GROUP, entry)
  redis.call('XDEL', stream, entry)
end

-- Round-robin over tenants: each turn moves one job from a backlog to the stream.
local function top_up(model, lane)
  local stream, ring = stream_key(model, lane), ring_key(model, lane)
  -- By far the most often: nothing waits behind the stream.
  if redis.call('EXISTS', ring) == 0 then return 0 end
  local unread = unread_count(stream)
  local was_empty = unread == 0
  local added, searched = 0, 0
  while unread < WINDOW and searched < SEARCHED do
    searched = searched + 1
    local tenant = redis.call('LPOP', ring)
    if not tenant then break end
    local backlog = backlog_key(model, lane, tenant)
    local id = redis.call('LPOP', backlog)
    if not id then suspect_loss() end
    if redis.call('EXISTS', backlog) == 1 then redis.call('RPUSH', ring, tenant) end
    -- A job cancelled or expired while it waited leaves its id behind; it is passed over here.
    if id and redis.call('HGET', job_key(id), 'state') == 'waiting' then
      redis.call('HSET', job_key(id), 'entry', redis.call('XADD', stream, '*', 'job', id))
      unread = unread + 1
      added = added + 1
    end
  end
  -- Whoever found the stream empty sleeps until this; whoever did not will come back by itself.
  if was_empty and added > 0 then
    redis.call('XADD', root .. ':wake', 'MAXLEN', '16', '*', 'model', model, 'lane', lane)
  end
  return added
end

-- Invariant of the ring: it holds a tenant exactly once while that tenant's backlog is not empty.
local function enqueue(id, model, lane, tenant, at_head)
  local backlog, ring = backlog_key(model, lane, tenant), ring_key(model, lane)
  local push = at_head and 'LPUSH' or 'RPUSH'
  if redis.call(push, backlog, id) == 1 then redis.call(push, ring, tenant) end
  redis.call('SADD', root .. ':models', model)
  top_up(model, lane)
end

-- Takes out a job that ends while it waits, where the search is cheap. In a long backlog its id is left to top_up,
-- and the submit script bounds the list by its length, so that what is left behind is bounded too.
local function leave_backlog(id, model, lane, tenant)
  local backlog = backlog_key(model, lane, tenant)
  if redis.call('LLEN', backlog) > SEARCHED then return end
  redis.call('LREM', backlog, 1, id)
  if redis.call('EXISTS', backlog) == 0 then redis.call('LREM', ring_key(model, lane), 0, tenant) end
end

local function promote_due()
  local due = redis.call('ZRANGEBYSCORE', root .. ':delayed', '-inf', now, 'LIMIT', 0, 100)
  for _, id in ipairs(due) do
    redis.call('ZREM', root .. ':delayed', id)
    local job = redis.call('HMGET', job_key(id), 'state', 'model', 'lane', 'tenant')
    if job[1] == 'waiting' then enqueue(id, job[2], job[3], job[4], false) end
  end
end

local function publish_event(id, attempt, kind, data)
  redis.call('XADD', events_key(id), 'MAXLEN', EVENT_CAP, '*', 'type', kind, 'attempt', attempt, 'data', data)
  redis.call('PUBLISH', bell(id), 'event')
end

-- The only way a job ends: outcome, entry, event, counters and times to live, together. An entry that the caller has
-- dropped already is named by dropped.
local function finish(id, state, field, body, dropped)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'state', 'model', 'lane', 'entry', 'bytes', 'ttl', 'idem', 'attempt', 'tenant',
    'hook')
  local ttl = tonumber(job[6]) or 86400
  if state == 'dead' then ttl = math.max(ttl, DEAD_TTL_S) end
  -- What frees memory comes first: a server that is full refuses only the first write of a script that could
  -- take more of it, and an end must always be written.
  redis.call('HDEL', key, 'owner', 'entry', 'error', state == 'done' and 'notes' or 'error')
  redis.call('HSET', key, 'state', state, 'finished', now, field, body)
  redis.call('ZREM', root .. ':deadlines', id)
  if job[4] and job[4] ~= dropped then drop_entry(stream_key(job[2], job[3]), job[4]) end
  if job[1] == 'waiting' then
    count('waiting', -1)
    if redis.call('ZREM', root .. ':delayed', id) == 0 and not job[4] then
      leave_backlog(id, job[2], job[3], job[9])
    end
  end
  if job[5] then
    -- The dead keep their input: somebody will look at it, or try again.
    if state == 'dead' then redis.call('EXPIRE', inline_key(id), ttl) else redis.call('DEL', inline_key(id)) end
    count('bytes', -tonumber(job[5]))
  end
  redis.call('EXPIRE', key, ttl)
  if job[7] then redis.call('EXPIRE', root .. ':idem:' .. job[9] .. ':' .. job[7], ttl) end
  -- NOMKSTREAM: a job that never started has no events, and its end makes none.
  if redis.call('XADD', events_key(id), 'NOMKSTREAM', 'MAXLEN', EVENT_CAP, '*', 'type', state, 'attempt', job[8] or 0,
    'data', '{}') then
    redis.call('EXPIRE', events_key(id), EVENT_GRACE_S)
  end
  redis.call('PUBLISH', bell(id), #body <= BELL_BODY and state .. ' ' .. body or state)
  if job[10] then
    -- Written with the end itself: no death in between can lose it. lua/hook_take.lua hands it out.
    redis.call('HSET', key, 'hook_state', 'pending', 'hook_tries', 0)
    redis.call('EXPIRE', key, math.max(ttl, HOOK_TTL_S))
    redis.call('ZREM', root .. ':bridged', id)
    redis.call('ZADD', root .. ':hooks:' .. job[10], now, id)
  end
  if state == 'dead' then
    local dead = root .. ':dead'
    redis.call('ZADD', dead, now, id)
    redis.call('ZREMRANGEBYRANK', dead, 0, -1 - DEAD_CAP)
  end
  count(state, 1)
  top_up(job[2], job[3])
end

local function expire_if_due(id, job_state, deadline)
  if deadline and now > tonumber(deadline) and not TERMINAL[job_state] then
    local running = job_state == 'running'
    finish(id, 'expired', 'error',
      '{"code":"expired","message":"the deadline passed before the job was done","retryable":false}')
    if running then redis.call('XADD', root .. ':control', 'MAXLEN', '1024', '*', 'cancel', id) end
    return true
  end
  return false
end

-- Ends what is past its deadline, wherever it waits and whoever serves it: nobody need read it for it to stop counting.
local function expire_due(limit)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', root .. ':deadlines', '-inf', '(' .. now, 'LIMIT', 0, limit)) do
    local job = redis.call('HMGET', job_key(id), 'state', 'deadline')
    if not (job[1] and expire_if_due(id, job[1], job[2])) then redis.call('ZREM', root .. ':deadlines', id) end
  end
end

-- Jobs that waited and have been started, all those of one script; and jobs started a second, averaged over some
-- seconds: tells a client that was refused when to come back.
local function note_starts(started)
  count('waiting', -started)
  local seen = redis.call('HMGET', counts_key, 'rate', 'rate_from', 'rate_starts')
  local from, starts = tonumber(seen[2] or 0), tonumber(seen[3] or 0) + started
  local span = now - from
  if span < 1000 then
    redis.call('HSET', counts_key, 'rate_starts', starts)
    return
  end
  local fresh = 1000 * starts / span
  -- After a long pause the old pace means nothing.
  local rate = span < 60000 and seen[1] and 0.7 * tonumber(seen[1]) + 0.3 * fresh or fresh
  redis.call('HSET', counts_key, 'rate', string.format('%.3f', rate), 'rate_from', now, 'rate_starts', 0)
end

-- Turns a pending entry into a delivery of a new attempt, or gets rid of it. The attempt number is the
-- fence: it only ever rises, and whatever carries an older one cannot change the job, except by Done. The second value
-- tells whether the job had waited.
local function deliver(owner, wire, stream, entry, id, fresh)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'state', 'entry', 'deadline', 'wire', 'payload', 'tries', 'alone', 'crashes', 'created',
    'started')
  local state = job[1]
  if not state then
    drop_entry(stream, entry)
    -- Whatever ends a job takes its entry along, so it was waiting still when its hash went.
    if fresh then count('waiting', -1) end
    incident('lost', id, 'an entry of ' .. stream .. ' names a job that is not there')
    return { 'lost', id }
  end
  if TERMINAL[state] or job[2] ~= entry then
    drop_entry(stream, entry)
    return nil
  end
  if expire_if_due(id, state, job[3]) then return nil end
  if tonumber(job[4]) > wire then
    -- Newer than this worker: back, with a pause, so that it does not come straight back to the same one.
    drop_entry(stream, entry)
    redis.call('HDEL', key, 'entry', 'owner')
    if state == 'running' then count('waiting', 1) end
    redis.call('HSET', key, 'state', 'waiting')
    redis.call('ZADD', root .. ':delayed', now + 1000, id)
    return { 'newer', id }
  end
  local attempt = redis.call('HINCRBY', key, 'attempt', 1)
  redis.call('HSET', key, 'state', 'running', 'owner', owner, 'taken', now, 'started', job[10] or now)
  publish_event(id, attempt, 'started', '{}')
  return { 'job', id, stream, entry, attempt, job[5], job[6] or '0', job[7] or '0', job[8] or '0', job[9], now },
    state == 'waiting'
end

local function field_of(fields, name)
  for i = 1, #fields, 2 do
    if fields[i] == name then return fields[i + 1] end
  end
  return nil
end

-- Entries as XREADGROUP and XCLAIM return them, into deliveries appended to out; returns how many jobs.
-- fresh: nobody has had them before.
local function deliver_all(owner, wire, stream, entries, out, fresh)
  local jobs, started = 0, 0
  for _, item in ipairs(entries) do
    local entry, fields = item[1], item[2]
    local id = fields and field_of(fields, 'job')
    local got, had_waited
    if not fields then
      drop_entry(stream, entry)
      -- Only the job itself knows that this was its entry: the sweep finds it.
      suspect_loss()
      incident('lost', '', 'entry ' .. entry .. ' of ' .. stream .. ' was deleted while it was pending')
      got = { 'lost', '' }
    elseif not id then
      drop_entry(stream, entry)
      incident('junk', '', string.sub(table.concat(fields, ' '), 1, 512))
      got = { 'junk', '' }
    else
      got, had_waited = deliver(owner, wire, stream, entry, id, fresh)
    end
    if got then out[#out + 1] = got end
    if got and got[1] == 'job' then jobs = jobs + 1 end
    if had_waited then started = started + 1 end
  end
  if started > 0 then note_starts(started) end
  return jobs
end
