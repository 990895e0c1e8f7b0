-- A worker says that it lives. Returns {held, orphans...}: held is 1 while the lock is still its own; an orphan is a
-- model that jobs wait for and that no worker has served for horizon milliseconds.
-- ARGV: consumer, lock value, time to live in milliseconds, health as JSON, horizon, models served...
local consumer, value, ttl, health, horizon = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local lock = root .. ':lock:' .. consumer
local held = redis.call('GET', lock)
if held and held ~= value then return { 0 } end
-- A server that is full refuses the first write that could take memory; the lock must be kept all the same.
if held then redis.call('PEXPIRE', lock, ttl) end
redis.call('SET', lock, value, 'PX', ttl)
redis.call('SET', root .. ':worker:' .. consumer, health, 'PX', ttl)
redis.call('SADD', root .. ':workers', consumer)
redis.call('PEXPIRE', root .. ':life:' .. consumer, LIFE_MS)
local served = root .. ':served'
for i = 6, #ARGV do redis.call('HSET', served, ARGV[i], now) end
promote_due()
expire_due(100)
local out = { 1 }
for _, model in ipairs(redis.call('SMEMBERS', root .. ':models')) do
  local last = tonumber(redis.call('HGET', served, model) or 0)
  if now - last > horizon then
    local waits = false
    for _, lane in ipairs({ 'interactive', 'normal', 'bulk' }) do
      -- EXISTS first: counting would create the group, and with it a stream for a model that nobody has.
      local stream = stream_key(model, lane)
      if redis.call('EXISTS', stream) == 1 then
        if redis.call('XLEN', stream) > 0 or redis.call('EXISTS', ring_key(model, lane)) == 1 then
          waits = true
        else
          redis.call('DEL', stream)
        end
      end
    end
    if waits then
      out[#out + 1] = model
    else
      redis.call('SREM', root .. ':models', model)
      redis.call('HDEL', served, model)
    end
  end
end
return out
