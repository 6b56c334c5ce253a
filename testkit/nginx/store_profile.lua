-- How a real object store answers, for nginx: the profiles and draws of feedstock's `StoreProfile`, number for number
-- (dataset/base/src/store_profile.rs). The fate of a request is a pure function of (profile, seed, number of the request).

local ffi = require("ffi")
local bit = require("bit")

local S3 = {
    first_byte = 0.027, first_byte_sigma = 0.62,
    slow_share = 1e-4, slow_from = 0.5, slow_to = 2.0,
    stuck_share = 1e-5, stuck = 10.0,
    lost_share = 1e-4,
    bytes_per_s = 85e6, bytes_per_s_sigma = 0.25, trickle_share = 0.01,
    requests_per_s = 5500,
}

local function like_s3(changes)
    return setmetatable(changes, { __index = S3 })
end

local profiles = {
    s3 = S3,
    express = like_s3({ first_byte = 0.005, first_byte_sigma = 0.2 }),
    far = like_s3({ first_byte = 0.150, first_byte_sigma = 0.7 }),
}

-- The finalizer of splitmix64, in 64-bit integers of LuaJIT.
local function mixed(state)
    state = bit.bxor(state, bit.rshift(state, 30)) * 0xBF58476D1CE4E5B9ULL
    state = bit.bxor(state, bit.rshift(state, 27)) * 0x94D049BB133111EBULL
    return bit.bxor(state, bit.rshift(state, 31))
end

local function draws(seed, request)
    local state = mixed(bit.bxor(mixed(ffi.cast("uint64_t", seed)), ffi.cast("uint64_t", request)))
    local self = {}
    function self.uniform()
        state = state + 0x9E3779B97F4A7C15ULL
        return (tonumber(bit.rshift(mixed(state), 11)) + 0.5) / 2 ^ 53
    end
    function self.normal()
        local radius = math.sqrt(-2 * math.log(self.uniform()))
        return radius * math.cos(2 * math.pi * self.uniform())
    end
    return self
end

local M = {}

function M.named(name)
    return profiles[name] or error("the profile must be s3, express or far; got " .. tostring(name))
end

-- Returns the seconds until the first byte, nil if no answer ever comes, and the bytes per second of the body.
function M.fate(profile, seed, request)
    local draw = draws(seed, request)
    local kind = draw.uniform()
    local latency = profile.first_byte * math.exp(profile.first_byte_sigma * draw.normal())
    local slow_from = profile.lost_share
    local stuck_from = slow_from + profile.slow_share
    local first_byte = latency
    if kind < slow_from then
        first_byte = nil
    elseif kind < stuck_from then
        first_byte = profile.slow_from + (profile.slow_to - profile.slow_from) * draw.uniform()
    elseif kind < stuck_from + profile.stuck_share then
        first_byte = profile.stuck
    end
    local rate = profile.bytes_per_s * math.exp(profile.bytes_per_s_sigma * draw.normal())
    if draw.uniform() < profile.trickle_share then
        rate = rate * 0.1
    end
    return first_byte, rate
end

-- Takes one request from the bucket of the shared limit, which holds one second's worth. Returns false above the limit.
function M.take(shared, per_s, now)
    local left = shared:get("left") or per_s
    local at = shared:get("at") or now
    left = math.min(left + math.max(now - at, 0) * per_s, per_s)
    local is_served = left >= 1
    shared:set("left", is_served and left - 1 or left)
    shared:set("at", now)
    return is_served
end

-- Delays and paces the request of this nginx handler.
function M.answer(profile, seed, per_s)
    local shared = ngx.shared.store
    local number = shared:incr("requests", 1, -1)
    if not M.take(shared, per_s, ngx.now()) then
        ngx.sleep(profile.first_byte / 4)
        ngx.status = 503
        ngx.header["Content-Type"] = "application/xml"
        ngx.print("<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
        return ngx.exit(503)
    end
    local first_byte, rate = M.fate(profile, seed, number)
    if not first_byte then
        ngx.sleep(86400) -- until the client closes the connection
        return ngx.exit(444)
    end
    ngx.var.limit_rate = math.floor(rate)
    ngx.header["X-First-Byte-Microseconds"] = math.floor(first_byte * 1e6)
    ngx.sleep(first_byte)
end

return M
