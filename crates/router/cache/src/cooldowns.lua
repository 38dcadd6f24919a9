-- The cooldowns of all processes. KEYS: a hash of deployment and model -> end in ms, and the process that found out. ARGV, if a new one is
-- added: the field, its time in ms, the process. Returns all that have not ended: field, remaining ms, end, process.
local time = redis.call('TIME')
local ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if #ARGV > 0 then
    redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s', ms + tonumber(ARGV[2]), ARGV[3]))
    redis.call('EXPIRE', KEYS[1], 86400)
end
local out = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
    local till, by = string.match(all[i + 1], '^(%d+) (.*)$')
    if till and tonumber(till) > ms then
        out[#out + 1] = {all[i], tonumber(till) - ms, tonumber(till), by}
    else
        redis.call('HDEL', KEYS[1], all[i])
    end
end
return out
