-- Look over some jobs for those that wait, or are said to run, and are nowhere: in a stream, a list or a set that was
-- deleted or evicted beneath them. Their hash is there, so the work is: they wait again. Returns {more, ids...}: more is
-- 1 while a pass goes on that was called for, else 0.
-- The cursor is shared, so that the cost is the same however many workers there are.
-- ARGV: keys to look at, milliseconds between two looks where nothing has called for one
-- Items of lists that one look reads. With a hundred keys this is about a millisecond of the server.
local SOUGHT = 1000
-- Of each list for people, jobs that one look checks.
local LISTED = 8
local state_key = root .. ':sweep'
local said = redis.call('HMGET', state_key, 'cursor', 'at', 'passes')
local passes = tonumber(said[3] or 0)
if passes == 0 and now - tonumber(said[2] or 0) < tonumber(ARGV[2]) then return { 0 } end

local prefix = root .. ':job:'
local pattern = string.gsub(prefix, '[%*%?%[%]\\]', '\\%0') .. '*'
local found = redis.call('SCAN', said[1] or '0', 'MATCH', pattern, 'COUNT', ARGV[1])
if found[1] == '0' then passes = math.max(0, passes - 1) end
redis.call('HSET', state_key, 'cursor', found[1], 'at', now, 'passes', passes)

local budget, lists = SOUGHT, {}

-- Whether an item is in a list, or nil where the lists are too long for looking to be cheap. Each is read once; what
-- waits in a long one is looked for once it is shorter, or gone.
local function in_list(list, item)
  if lists[list] == nil then
    lists[list] = false
    local length = redis.call('LLEN', list)
    if length <= budget then
      budget = budget - length
      lists[list] = {}
      for _, each in ipairs(redis.call('LRANGE', list, 0, -1)) do lists[list][each] = true end
    end
  end
  if not lists[list] then return nil end
  return lists[list][item] == true
end

local function has_entry(stream, entry)
  return entry and #redis.call('XRANGE', stream, entry, entry) > 0
end

local function is_pending(stream, entry)
  if not entry then return false end
  local pending = redis.pcall('XPENDING', stream, GROUP, entry, entry, 1)
  return not pending.err and #pending > 0
end

-- A tenant that has a backlog and no turn, where the ring was lost, is given one.
local function give_turn(model, lane, tenant)
  local ring = ring_key(model, lane)
  if in_list(ring, tenant) ~= false then return end
  redis.call('RPUSH', ring, tenant)
  lists[ring][tenant] = true
  redis.call('SADD', root .. ':models', model)
  top_up(model, lane)
end

local out = { 0 }

local function waits_again(id, model, lane, tenant, detail)
  redis.call('HDEL', job_key(id), 'entry', 'owner')
  redis.call('HSET', job_key(id), 'state', 'waiting')
  incident('requeued', id, detail)
  enqueue(id, model, lane, tenant, true)
  out[#out + 1] = id
end

for _, key in ipairs(found[2]) do
  local id = string.sub(key, #prefix + 1)
  local job = redis.call('HMGET', key, 'state', 'entry', 'model', 'lane', 'tenant')
  local state, entry, model, lane, tenant = job[1], job[2], job[3], job[4], job[5]
  if state == 'running' then
    local stream = stream_key(model, lane)
    if not is_pending(stream, entry) then
      count('waiting', 1)
      waits_again(id, model, lane, tenant, 'it was running, and nothing was pending for it in ' .. stream)
    end
  elseif state == 'waiting' and entry then
    local stream = stream_key(model, lane)
    if not has_entry(stream, entry) then
      waits_again(id, model, lane, tenant, 'its entry was gone from ' .. stream)
    end
  elseif state == 'waiting' and not redis.call('ZSCORE', root .. ':delayed', id) then
    local backlog = backlog_key(model, lane, tenant)
    if in_list(backlog, id) == false then
      lists[backlog][id] = true
      waits_again(id, model, lane, tenant, 'it was gone from its backlog')
    else
      give_turn(model, lane, tenant)
    end
  end
end
-- Lists for people to look at: what has expired since leaves them, so that their lengths are those of what is there.
for _, list in ipairs({ root .. ':dead', root .. ':undelivered' }) do
  for _, id in ipairs(redis.call('ZRANDMEMBER', list, LISTED)) do
    if redis.call('EXISTS', job_key(id)) == 0 then redis.call('ZREM', list, id) end
  end
end
if passes > 0 then out[1] = 1 end
return out
