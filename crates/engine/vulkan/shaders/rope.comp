#version 450
// Norms (where there are weights) and rotates the heads of queries and keys, and stores keys and values in their pages. One workgroup a head.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "kv.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint KEY_TYPE = 1u;
layout(constant_id = 1) const uint VALUE_TYPE = 1u;
layout(constant_id = 2) const uint ADJACENT = 0u;

layout(binding = 0, std430) buffer Queries { float q[]; };
layout(binding = 1, std430) readonly buffer KeysIn { float k[]; };
layout(binding = 2, std430) readonly buffer ValuesIn { float v[]; };
layout(binding = 3, std430) readonly buffer QNorm { float q_norm[]; };
layout(binding = 4, std430) readonly buffer KNorm { float k_norm[]; };
layout(binding = 5, std430) readonly buffer Block { uint block[]; };
layout(binding = 6, std430) writeonly buffer Keys { uint keys[]; };
layout(binding = 7, std430) writeonly buffer Values { uint values[]; };
layout(binding = 8, std430) readonly buffer Angles { vec2 angles[]; };  // (sine, cosine) [n, pairs], scaled
layout(binding = 9, std430) readonly buffer Factors { float factors[]; };  // of queries [n], then of keys [n]: norms over all heads

layout(push_constant) uniform Push {
    uint heads, kv_heads, dim, stride, pairs;
    uint norm;    // 0: none, 1: of each head, 2: of all heads together
    float eps;
    uint places;  // in the block: page * 64 + row of each token
    uint angles_at;
    uint tokens;
} p;

shared float head[512];
shared float sums[64];

void store_row(bool is_key, uint at) {
    uint type = is_key ? KEY_TYPE : VALUE_TYPE, words = kv_words(type, p.dim), me = gl_LocalInvocationID.x;
    uint base = at * words;
    if (type != KV_Q8_0) {
        for (uint i = me; i < words; i += 64u) {
            uint word = type == KV_F32 ? floatBitsToUint(head[i]) : (to_half(head[2u * i]) | (to_half(head[2u * i + 1u]) << 16));
            if (is_key) { keys[base + i] = word; } else { values[base + i] = word; }
        }
        return;
    }
    for (uint b = me; b < p.dim / 32u; b += 64u) {
        float most = 0.0;
        for (uint i = 0u; i < 32u; i++) { most = max(most, abs(head[32u * b + i])); }
        precise float d = most / 127.0;
        float inverse = d > 0.0 ? 1.0 / d : 0.0;
        for (uint w = 0u; w < 8u; w++) {
            uint word = 0u;
            for (uint i = 0u; i < 4u; i++) {
                precise float scaled = head[32u * b + 4u * w + i] * inverse;
                word |= (uint(clamp(round_away(scaled), -128, 127)) & 255u) << (8u * i);
            }
            uint to = base + 8u * b + w;
            if (is_key) { keys[to] = word; } else { values[to] = word; }
        }
        uint to = base + p.dim / 4u + b;
        if (is_key) { keys[to] = to_half(d); } else { values[to] = to_half(d); }
    }
}

void main() {
    uint t = gl_WorkGroupID.y, h = gl_WorkGroupID.x, me = gl_LocalInvocationID.x;
    bool is_query = h < p.heads, is_key = !is_query && h < p.heads + p.kv_heads;
    uint own = is_query ? h : is_key ? h - p.heads : h - p.heads - p.kv_heads;
    uint from = is_query ? (t * p.heads + own) * p.stride : (t * p.kv_heads + own) * p.dim;
    for (uint i = me; i < p.dim; i += 64u) { head[i] = is_query ? q[from + i] : is_key ? k[from + i] : v[from + i]; }
    barrier();
    if (is_query || is_key) {
        float scale = 1.0;
        uint weight = 0u;
        if (p.norm == 2u) {
            scale = factors[(is_query ? 0u : p.tokens) + t];
            weight = own * p.dim;
        }
        if (p.norm == 1u) {
            precise float sum = 0.0;
            for (uint i = me; i < p.dim; i += 64u) { sum = sum + head[i] * head[i]; }
            sums[me] = sum;
            barrier();
            for (uint half_ = 32u; half_ > 0u; half_ >>= 1) {
                if (me < half_) { precise float s = sums[me] + sums[me + half_]; sums[me] = s; }
                barrier();
            }
            precise float mean = sums[0] / float(p.dim) + p.eps;
            scale = 1.0 / sqrt(mean);
        }
        if (p.norm != 0u) {
            for (uint i = me; i < p.dim; i += 64u) {
                precise float y = (head[i] * scale) * (is_query ? q_norm[weight + i] : k_norm[weight + i]);
                head[i] = y;
            }
            barrier();
        }
        for (uint j = me; j < p.pairs; j += 64u) {
            uint lo = ADJACENT == 1u ? 2u * j : j, hi = ADJACENT == 1u ? 2u * j + 1u : j + p.pairs;
            vec2 a = angles[p.angles_at + t * p.pairs + j];
            precise float x = head[lo] * a.y;
            precise float y = head[hi] * a.y;
            precise float u = head[hi] * a.x;
            precise float w = head[lo] * a.x;
            head[lo] = x - u;
            head[hi] = y + w;
        }
        barrier();
    }
    if (is_query) {
        for (uint i = me; i < p.dim; i += 64u) { q[from + i] = head[i]; }
    } else {
        uint place = block[p.places + t];
        store_row(is_key, ((place >> 6) * p.kv_heads + own) * 64u + (place & 63u));
    }
}
