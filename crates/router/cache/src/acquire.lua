-- Checks the limits of all accounts, then counts one request for each of them; or counts nothing.
-- KEYS: for each account its counts (a hash: r<second> requests, t<second> tokens, c<second> costs) and its running requests (a sorted set
-- of leases by expiry).
-- ARGV: the lease's name, which ends with |RESERVED TOKENS|COST, and its lifetime in ms; then for each account: requests a minute, tokens a minute, running
-- requests, the budget (-1: no limit); the request's expected tokens; 1 if a request that would exceed the tokens is refused, 0 if only
-- one after the limit is reached; what is known to be spent; 1 if it is added to the running requests. Money in millionths of a dollar.
local time = redis.call('TIME')
local now = tonumber(time[1])
local ms = now * 1000 + math.floor(tonumber(time[2]) / 1000)
local many = #KEYS / 2
local function count(key)
    local sums, seconds = {r = 0, t = 0, c = 0}, {r = {}, t = {}, c = {}}
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do
        local kind, second = string.sub(all[i], 1, 1), tonumber(string.sub(all[i], 2))
        if second < now - 60 then
            redis.call('HDEL', key, all[i])
        else
            sums[kind] = sums[kind] + tonumber(all[i + 1])
            seconds[kind][second] = tonumber(all[i + 1])
        end
    end
    return sums, seconds
end
-- Seconds until the sum is below the limit, if nothing is added.
local function wait(sum, seconds, limit)
    for second = now - 60, now do
        sum = sum - (seconds[second] or 0)
        if sum < limit then return second + 61 - now end
    end
    return 61
end
for i = 1, many do
    local at = 2 + (i - 1) * 8
    local rpm, tpm, parallel = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local budget, tokens, whole = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]), ARGV[at + 6] == '1'
    local sums, seconds = count(KEYS[2 * i - 1])
    if ARGV[at + 8] == '1' or (tpm >= 0 and whole) then
        redis.call('ZREMRANGEBYSCORE', KEYS[2 * i], '-inf', ms)
    end
    if budget >= 0 then
        local spent = tonumber(ARGV[at + 7])
        for _, lease in ipairs(redis.call('ZRANGE', KEYS[2 * i], 0, -1)) do
            spent = spent + (tonumber(string.match(lease, '|(%d+)$')) or 0)
        end
        -- What others have spent in the last seconds may not be known yet.
        for second = now - 3, now do spent = spent + (seconds.c[second] or 0) end
        if spent >= budget then return {0, i - 1, 3, 0} end
    end
    if parallel >= 0 and redis.call('ZCARD', KEYS[2 * i]) >= parallel then return {0, i - 1, 2, 0} end
    if rpm >= 0 and sums.r >= rpm then return {0, i - 1, 0, wait(sums.r, seconds.r, rpm)} end
    if tpm >= 0 then
        local most = tpm
        if whole then most = tpm - tokens + 1 end
        if sums.t > 0 and sums.t >= most then return {0, i - 1, 1, wait(sums.t, seconds.t, math.max(most, 1))} end
        if whole then
            local held = 0
            for _, lease in ipairs(redis.call('ZRANGE', KEYS[2 * i], 0, -1)) do
                held = held + (tonumber(string.match(lease, '|(%d+)|%d+$')) or 0)
            end
            if held > 0 and sums.t + held >= most then return {0, i - 1, 4, 0} end
        end
    end
end
for i = 1, many do
    local at = 2 + (i - 1) * 8
    if ARGV[at + 8] == '1' then
        redis.call('ZADD', KEYS[2 * i], ms + tonumber(ARGV[2]), ARGV[1])
        redis.call('PEXPIRE', KEYS[2 * i], 2 * tonumber(ARGV[2]))
    end
    if tonumber(ARGV[at + 1]) >= 0 then redis.call('HINCRBY', KEYS[2 * i - 1], 'r' .. now, 1) end
    if tonumber(ARGV[at + 5]) > 0 then redis.call('HINCRBY', KEYS[2 * i - 1], 't' .. now, ARGV[at + 5]) end
    redis.call('EXPIRE', KEYS[2 * i - 1], 70)
end
return {1, now, 0, 0}
