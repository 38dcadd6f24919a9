-- Extends running requests. KEYS: one account's running requests. ARGV: the lifetime in ms, then names of leases.
local time = redis.call('TIME')
local ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
for i = 2, #ARGV do
    -- Also one that Redis has lost in a restart.
    redis.call('ZADD', KEYS[1], ms + tonumber(ARGV[1]), ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], 2 * tonumber(ARGV[1]))
return 1
