-- Ends a request. KEYS: as in acquire.lua. ARGV: the lease's name, the second in which it was counted, the
-- request's cost in millionths of a dollar; then for each account the expected and the actual tokens, and 1 if it has a budget.
local now = tonumber(redis.call('TIME')[1])
for i = 1, #KEYS / 2 do
    redis.call('ZREM', KEYS[2 * i], ARGV[1])
    local more = tonumber(ARGV[3 * i + 2]) - tonumber(ARGV[3 * i + 1])
    local second = tonumber(ARGV[2])
    if ARGV[3 * i + 3] == '1' and tonumber(ARGV[3]) > 0 then
        redis.call('HINCRBY', KEYS[2 * i - 1], 'c' .. now, ARGV[3])
    end
    -- An overestimate is taken from the second in which it was counted, if that still counts.
    if more > 0 then
        redis.call('HINCRBY', KEYS[2 * i - 1], 't' .. now, more)
    elseif more < 0 and second >= now - 60 then
        redis.call('HINCRBY', KEYS[2 * i - 1], 't' .. second, more)
    end
    redis.call('EXPIRE', KEYS[2 * i - 1], 70)
end
return 1
