-- Read up to n jobs, over streams in the order given. Returns a list of {'job', ...}, {'lost', id}, {'newer', id}, {'junk', ''}.
-- XREADGROUP's own COUNT is per stream; here n holds over all of them.
-- A stream whose oldest unread entry has waited for long moves up by a lane for every AGING_MS, so that bulk work is
-- slow under a constant load of interactive work, but never starved.
-- ARGV: consumer, owner, wire, n, then model, lane, model, lane, ...
local AGING_MS = 20000
local RANK = { interactive = 0, normal = 1, bulk = 2 }

local consumer, owner, wire, n = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
promote_due()
expire_due(100)

local function oldest_unread_ms(stream)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err then return now end
  for _, group in ipairs(groups) do
    if field_of(group, 'name') == GROUP then
      local head = redis.call('XRANGE', stream, '(' .. field_of(group, 'last-delivered-id'), '+', 'COUNT', 1)
      if head[1] then return tonumber(string.match(head[1][1], '^%d+')) end
    end
  end
  return now
end

-- Streams with something in them, or with something to be put in. Of the rest nothing can be taken, and idle workers
-- look at many.
local order = {}
for i = 5, #ARGV, 2 do
  local model, lane = ARGV[i], ARGV[i + 1]
  if redis.call('XLEN', stream_key(model, lane)) > 0 or redis.call('EXISTS', ring_key(model, lane)) == 1 then
    order[#order + 1] = { model = model, lane = lane, urgency = 0, position = i }
  end
end
for _, one in ipairs(#order > 1 and order or {}) do
  local age = now - oldest_unread_ms(stream_key(one.model, one.lane))
  one.urgency = (RANK[one.lane] or 2) - age / AGING_MS
end
table.sort(order, function(a, b)
  -- Within a lane ages differ by milliseconds all the time; only a lane's worth of them changes the order.
  local left, right = math.ceil(a.urgency), math.ceil(b.urgency)
  if left ~= right then return left < right end
  return a.position < b.position
end)

local out, got = {}, 0
for _, one in ipairs(order) do
  local stream = stream_key(one.model, one.lane)
  local more = true
  while more and got < n do
    local asked = n - got
    local read = redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', asked, 'STREAMS', stream, '>')
    if read and read.err then
      -- NOGROUP: a fresh server, or one that lost its data.
      ensure_group(stream)
      read = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', asked, 'STREAMS', stream, '>')
    end
    local entries = read and read[1][2] or {}
    got = got + deliver_all(owner, wire, stream, entries, out, true)
    -- One that gave less than it was asked for is empty now; so is the backlog, where nothing can be added.
    more = top_up(one.model, one.lane) > 0 or #entries == asked
  end
end
return out
