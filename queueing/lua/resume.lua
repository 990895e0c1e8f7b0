-- What is already ours: entries pending for this consumer that it does not hold. A worker reads these first, after
-- every start and every reconnect: a reply lost on the way leaves them there, and '>' never returns them.
-- ARGV: consumer, owner, wire, number of held entries, those entries, then model, lane, ...
local consumer, owner, wire, held_count = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local held = {}
for i = 5, 4 + held_count do held[ARGV[i]] = true end
local out = {}
for i = 5 + held_count, #ARGV, 2 do
  local stream = stream_key(ARGV[i], ARGV[i + 1])
  ensure_group(stream)
  local start = '-'
  while true do
    -- Not XREADGROUP from 0: that renews every lease on the way, those of what we hold and make no progress with too.
    local mine = redis.call('XPENDING', stream, GROUP, start, '+', 100, consumer)
    for _, item in ipairs(mine) do
      local entry = item[1]
      start = '(' .. entry
      if not held[entry] then
        local claimed = redis.call('XCLAIM', stream, GROUP, consumer, 0, entry)
        -- Claiming an entry that is not in the stream any more removes it from the pending list and returns nothing.
        if #claimed == 0 or not claimed[1] then claimed = { { entry, false } } end
        deliver_all(owner, wire, stream, claimed, out)
      end
    end
    if #mine < 100 then break end
  end
end
return out
