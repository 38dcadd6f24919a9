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
layout(binding = 10, std430) readonly buffer VNorm { float v_norm[]; };

layout(push_constant) uniform Push {
    uint heads, kv_heads, dim, stride, pairs;
    uint places;  // in the block: page * 64 + row of each token
    uint tokens;
    uint value_dim;
    uint rotated_at;                 // the first rotated dimension
    uint q_norm, k_norm, v_norm;     // 0: none; WHOLE: of all heads together; else of so many first values of each head
    float q_eps, k_eps, v_eps;
    uint norm_last;                  // 1: after the rotation
    float value_scale;
    // queries are multiplied by 1 + turn[0] ln(1 + floor((position + turn[2]) / turn[1])); turn[0] is 0 if they are not
    uint positions;                  // in the block
    float turn0, turn1, turn2;
    uint half_;                      // pairs of a part of the rotated dimensions, which is paired within itself
} p;

const uint WHOLE = 0xffffffffu;

shared float head[640];
shared float sums[64];

void store_row(bool is_key, uint dim, uint at) {
    uint type = is_key ? KEY_TYPE : VALUE_TYPE, words = kv_words(type, dim), me = gl_LocalInvocationID.x;
    uint base = at * words;
    if (type != KV_Q8_0) {
        for (uint i = me; i < words; i += 64u) {
            uint word = type == KV_F32 ? floatBitsToUint(head[i]) : (to_half(head[2u * i]) | (to_half(head[2u * i + 1u]) << 16));
            if (is_key) { keys[base + i] = word; } else { values[base + i] = word; }
        }
        return;
    }
    for (uint b = me; b < dim / 32u; b += 64u) {
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
        uint to = base + dim / 4u + b;
        if (is_key) { keys[to] = to_half(d); } else { values[to] = to_half(d); }
    }
}

// The weight of a norm: of queries, keys or values.
float norm_weight(uint kind, uint i) { return kind == 0u ? q_norm[i] : kind == 1u ? k_norm[i] : v_norm[i]; }

// Normalises the head, or its first values.
void normalise(uint kind, uint own, uint t) {
    uint me = gl_LocalInvocationID.x, len = kind == 0u ? p.q_norm : kind == 1u ? p.k_norm : p.v_norm;
    if (len == 0u) { return; }
    float scale = 1.0;
    uint weight = 0u;
    if (len == WHOLE) {
        scale = factors[(kind == 0u ? 0u : p.tokens) + t];
        weight = own * p.dim;
        len = p.dim;
    } else {
        precise float sum = 0.0;
        for (uint i = me; i < len; i += 64u) { sum = sum + head[i] * head[i]; }
        sums[me] = sum;
        barrier();
        for (uint half_ = 32u; half_ > 0u; half_ >>= 1) {
            if (me < half_) { precise float s = sums[me] + sums[me + half_]; sums[me] = s; }
            barrier();
        }
        precise float mean = sums[0] / float(len) + (kind == 0u ? p.q_eps : kind == 1u ? p.k_eps : p.v_eps);
        scale = 1.0 / sqrt(mean);
    }
    for (uint i = me; i < len; i += 64u) {
        precise float y = (head[i] * scale) * norm_weight(kind, weight + i);
        head[i] = y;
    }
    barrier();
}

void rotate(uint t) {
    for (uint j = gl_LocalInvocationID.x; j < p.pairs; j += 64u) {
        uint lo = p.rotated_at + (ADJACENT == 1u ? 2u * j : j / p.half_ * 2u * p.half_ + j % p.half_);
        uint hi = lo + (ADJACENT == 1u ? 1u : p.half_);
        vec2 a = angles[t * p.pairs + j];
        precise float x = head[lo] * a.y;
        precise float y = head[hi] * a.y;
        precise float u = head[hi] * a.x;
        precise float w = head[lo] * a.x;
        head[lo] = x - u;
        head[hi] = y + w;
    }
    barrier();
}

void main() {
    uint t = gl_WorkGroupID.y, h = gl_WorkGroupID.x, me = gl_LocalInvocationID.x;
    uint kind = h < p.heads ? 0u : h < p.heads + p.kv_heads ? 1u : 2u;  // query, key, value
    uint own = h - (kind == 0u ? 0u : kind == 1u ? p.heads : p.heads + p.kv_heads), dim = kind == 2u ? p.value_dim : p.dim;
    uint from = kind == 0u ? (t * p.heads + own) * p.stride : (t * p.kv_heads + own) * dim;
    for (uint i = me; i < dim; i += 64u) { head[i] = kind == 0u ? q[from + i] : kind == 1u ? k[from + i] : v[from + i]; }
    barrier();
    if (p.norm_last == 0u || kind == 2u) { normalise(kind, own, t); }
    if (kind != 2u) { rotate(t); }
    if (p.norm_last == 1u && kind != 2u) { normalise(kind, own, t); }
    if (kind == 0u) {
        precise float factor = 1.0;
        if (p.turn0 != 0.0) { factor = 1.0 + p.turn0 * log(1.0 + floor((float(block[p.positions + t]) + p.turn2) / p.turn1)); }
        for (uint i = me; i < dim; i += 64u) {
            precise float scaled = head[i] * factor;
            q[from + i] = scaled;
        }
        return;
    }
    if (kind == 2u && p.value_scale != 1.0) {
        for (uint i = me; i < dim; i += 64u) { precise float scaled = head[i] * p.value_scale; head[i] = scaled; }
        barrier();
    }
    uint place = block[p.places + t];
    store_row(kind == 1u, dim, ((place >> 6) * p.kv_heads + own) * 64u + (place & 63u));
}
