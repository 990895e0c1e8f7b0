-- What waits, by lane. Changes nothing. Returns {delayed, dead, waiting, webhooks that wait, for how long the first of
-- them has been due in milliseconds, webhooks given up, unfinished jobs of RQ, then per lane: lane, waiting, running,
-- oldest}: oldest is the age in milliseconds, since its submission, of the job that has waited longest; -1 where none waits.
-- Ids that were cancelled or have expired in a backlog count until they are passed over.
-- Tenants that are looked at for the oldest, so that one script stays short.
local LOOKED_AT = 200

local lanes = {}
for _, lane in ipairs({ 'interactive', 'normal', 'bulk' }) do
  lanes[lane] = { waiting = 0, running = 0, oldest = -1 }
end

local function see(one, id)
  local created = id and tonumber(redis.call('HGET', job_key(id), 'created') or nil)
  if created then one.oldest = math.max(one.oldest, now - created) end
end

local function first_unread(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then return nil end
  local from = '-'
  for _, group in ipairs(groups) do
    if field_of(group, 'name') == GROUP then from = '(' .. field_of(group, 'last-delivered-id') end
  end
  local head = redis.call('XRANGE', stream, from, '+', 'COUNT', 1)
  return head[1] and field_of(head[1][2], 'job')
end

for _, model in ipairs(redis.call('SMEMBERS', root .. ':models')) do
  for lane, one in pairs(lanes) do
    local stream, ring = stream_key(model, lane), ring_key(model, lane)
    if redis.call('EXISTS', stream) == 1 then
      local pending = redis.pcall('XPENDING', stream, GROUP)
      local running = pending.err and 0 or pending[1]
      one.running = one.running + running
      one.waiting = one.waiting + math.max(0, redis.call('XLEN', stream) - running)
      see(one, first_unread(stream))
    end
    for _, tenant in ipairs(redis.call('LRANGE', ring, 0, LOOKED_AT - 1)) do
      local backlog = backlog_key(model, lane, tenant)
      one.waiting = one.waiting + redis.call('LLEN', backlog)
      see(one, redis.call('LINDEX', backlog, 0))
    end
  end
end

local webhooks = root .. ':hooks:http'
local first = redis.call('ZRANGE', webhooks, 0, 0, 'WITHSCORES')
local out = {
  redis.call('ZCARD', root .. ':delayed'), redis.call('ZCARD', root .. ':dead'),
  tonumber(redis.call('HGET', counts_key, 'waiting') or 0),
  redis.call('ZCARD', webhooks), first[2] and math.max(0, now - tonumber(first[2])) or 0,
  redis.call('ZCARD', root .. ':undelivered'), redis.call('ZCARD', root .. ':bridged'),
}
for _, lane in ipairs({ 'interactive', 'normal', 'bulk' }) do
  local one = lanes[lane]
  out[#out + 1] = lane
  out[#out + 1] = one.waiting
  out[#out + 1] = one.running
  out[#out + 1] = one.oldest
end
return out
