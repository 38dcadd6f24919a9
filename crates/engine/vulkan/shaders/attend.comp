#version 450
// Softmax attention of one query head over one chunk of 256 positions, page after page: maximum, sum of weights, and weighted values. Four
// invocations share a position's score, each with a quarter of the head, and four a value, each with a quarter of a page's positions: so that enough
// reads are under way. The last workgroup of a head adds its chunks up in ascending order, divides by the sum of weights, and applies the output gate.
// Decode and prefill run this same kernel.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "kv.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint KEY_TYPE = 1u;
layout(constant_id = 1) const uint VALUE_TYPE = 1u;
layout(constant_id = 2) const uint PARTS = 4u;  // values of a head / 64, rounded up
layout(constant_id = 3) const uint FLAGS = 0u;  // 1: values are in the keys; 2: scores have a cap; 4: there are sinks; 8: there is a window;
// 16: tokens of a block see all of it; 32: the window is to both sides

layout(binding = 0, std430) readonly buffer Queries { float queries[]; };
layout(binding = 1, std430) readonly buffer Keys { uint keys[]; };
layout(binding = 2, std430) readonly buffer Values { uint values[]; };
layout(binding = 3, std430) readonly buffer Block { uint block[]; };
layout(binding = 4, std430) coherent buffer Partial { float partial[]; };  // [tokens, heads, chunks, value_dim + 2]
layout(binding = 5, std430) writeonly buffer Out { float y[]; };
layout(binding = 6, std430) writeonly buffer Rows { uint q[]; };
layout(binding = 7, std430) writeonly buffer D { vec2 d[]; };
layout(binding = 8, std430) coherent buffer Tickets { uint tickets[]; };
layout(binding = 9, std430) readonly buffer Sinks { float sinks[]; };  // [heads]

layout(push_constant) uniform Push {
    uint heads, kv_heads, dim, stride;
    uint first_token, chunks;
    uint positions, tables, pages;  // in the block: position of each token, start of its page table, the tables
    float scale;
    uint gated, quantise;  // quantise: heads are whole blocks of 32, and are quantised too
    uint ticket;
    uint value_dim;
    uint last, from_multiple;  // the window: so many positions, or so many to each side; those from the last multiple of this on
    float cap;
    uint seen;  // in the block: first position and end of each token's block, its own position if it is in none
} p;

const bool IN_KEYS = (FLAGS & 1u) != 0u;

#include "quantise.glsl"
#include "tail.glsl"

const uint CHUNK = 256u;  // positions; as CHUNK_TOKENS
shared float query[640];
shared float weight[64];
shared float reduce[256];

float key_at(uint row, uint i) {
    uint base = row * kv_words(KEY_TYPE, p.dim);
    if (KEY_TYPE == KV_F32) { return uintBitsToFloat(keys[base + i]); }
    if (KEY_TYPE == KV_F16) { return half_at(keys[base + (i >> 1)], (i & 1u) == 1u); }
    float d = half_at(keys[base + p.dim / 4u + (i >> 5)], false);
    return d * float(bitfieldExtract(int(keys[base + (i >> 2)]), int(8u * (i & 3u)), 8));
}
float value_at(uint row, uint i) {
    if (IN_KEYS) { return key_at(row, i); }
    uint base = row * kv_words(VALUE_TYPE, p.value_dim);
    if (VALUE_TYPE == KV_F32) { return uintBitsToFloat(values[base + i]); }
    if (VALUE_TYPE == KV_F16) { return half_at(values[base + (i >> 1)], (i & 1u) == 1u); }
    float d = half_at(values[base + p.value_dim / 4u + (i >> 5)], false);
    return d * float(bitfieldExtract(int(values[base + (i >> 2)]), int(8u * (i & 3u)), 8));
}

// Adds the chunks of a head up, from `first` on; `base` is chunk 0.
void merge(uint t, uint h, uint first, uint chunks, uint base) {
    uint me = gl_LocalInvocationID.x, to = (t * p.heads + h) * p.value_dim;
    for (uint i = me; i < p.value_dim; i += 256u) {
        float most = -3.4028234e38;
        precise float sum = 0.0;
        precise float acc = 0.0;
        for (uint c = first; c < chunks; c++) {
            uint at = (base + c) * (p.value_dim + 2u);
            float next = max(most, partial[at + p.value_dim]);
            float old = c > first ? exp(most - next) : 0.0, new_ = exp(partial[at + p.value_dim] - next);
            precise float a = acc * old;
            acc = a + partial[at + i] * new_;
            precise float s = sum * old;
            sum = s + partial[at + p.value_dim + 1u] * new_;
            most = next;
        }
        if ((FLAGS & 4u) != 0u) {  // a score without a value
            float next = max(most, sinks[h]);
            acc = acc * exp(most - next);
            precise float s = sum * exp(most - next);
            sum = s + exp(sinks[h] - next);
        }
        precise float out_ = acc / sum;
        if (p.gated == 1u) { out_ = out_ * sigmoid(queries[(t * p.heads + h) * p.stride + p.dim + i]); }
        y[to + i] = out_;
        query[i] = out_;
    }
    if (p.quantise == 0u) { return; }
    barrier();
    for (uint b = me; b < p.value_dim >> 5; b += 256u) {
        float v[32];
        [[unroll]] for (uint i = 0u; i < 32u; i++) { v[i] = query[32u * b + i]; }
        store_block(v, (to >> 5) + b);
    }
}

void main() {
    uint chunk = gl_WorkGroupID.x, h = gl_WorkGroupID.y, t = p.first_token + gl_WorkGroupID.z, me = gl_LocalInvocationID.x;
    uint own = me & 63u, quarter = me >> 6;
    uint position = block[p.positions + t], context = position + 1u;
    uint first = 0u;  // position that is attended to; `context` is the end of these
    if ((FLAGS & 8u) != 0u) {
        first = p.last > 0u ? context - min(context, p.last) : 0u;
        if (p.from_multiple > 0u) { first = max(first, (context - 1u) / p.from_multiple * p.from_multiple); }
    }
    if ((FLAGS & 16u) != 0u) {
        uint begin = block[p.seen + 2u * t], end = block[p.seen + 2u * t + 1u];
        if ((FLAGS & 32u) != 0u) {
            first = max(position - min(position, p.last), begin);
            context = min(end, position + p.last + 1u);
        } else {
            first = min(first, begin);
            context = end;
        }
    }
    uint from = chunk * CHUNK, to = min(from + CHUNK, context);
    if (from >= to || to <= first) { return; }
    uint table = p.pages + block[p.tables + t], kv_head = h / (p.heads / p.kv_heads);
    for (uint i = me; i < p.dim; i += 256u) { query[i] = queries[(t * p.heads + h) * p.stride + i]; }
    barrier();
    float most = -3.4028234e38, sum = 0.0;
    float acc[PARTS];
    [[unroll]] for (uint i = 0u; i < PARTS; i++) { acc[i] = 0.0; }
    for (uint page = max(from, first & ~63u); page < to; page += 64u) {
        uint row = (block[table + (page >> 6)] * p.kv_heads + kv_head) * 64u, valid = min(64u, to - page);
        uint skipped = first - min(first, page);
        bool counts = own < valid && own >= skipped;
        precise float score = 0.0;
        if (counts) {
            uint each = (p.dim + 3u) >> 2, end = min(p.dim, (quarter + 1u) * each);
            for (uint i = quarter * each; i < end; i++) { score = score + query[i] * key_at(row + own, i); }
        }
        reduce[me] = score;
        barrier();
        if (quarter == 0u) {
            score = (reduce[own] + reduce[64u + own]) + (reduce[128u + own] + reduce[192u + own]);
            score = score * p.scale;
            if ((FLAGS & 2u) != 0u) { score = capped(score, p.cap); }
            weight[own] = counts ? score : -3.4028234e38;
        }
        barrier();
        float next = most;
        for (uint j = 0u; j < 64u; j++) { next = max(next, weight[j]); }
        barrier();
        if (quarter == 0u) { weight[own] = counts ? exp(score - next) : 0.0; }
        barrier();
        float shrink = most > -3.0e38 ? exp(most - next) : 0.0;
        // Each invocation adds them itself, as a tree takes six barriers: four sums, which are closer to the exact one than one sum is.
        precise vec4 sums = vec4(0.0);
        for (uint j = 0u; j < 16u; j++) { sums = sums + vec4(weight[j], weight[16u + j], weight[32u + j], weight[48u + j]); }
        precise float total = sum * shrink + ((sums.x + sums.y) + (sums.z + sums.w));
        sum = total;
        most = next;
        uint first_row = max(skipped, 16u * quarter), end_row = min(valid, 16u * (quarter + 1u));
        [[unroll]] for (uint part = 0u; part < PARTS; part++) {
            uint i = part * 64u + own;
            if (i < p.value_dim) {
                precise float a = acc[part] * shrink;
                for (uint j = first_row; j < end_row; j++) { a = a + weight[j] * value_at(row + j, i); }
                acc[part] = a;
            }
        }
        barrier();
    }
    uint head = gl_WorkGroupID.z * p.heads + h, out_ = (head * p.chunks + chunk) * (p.value_dim + 2u);
    [[unroll]] for (uint part = 0u; part < PARTS; part++) {
        reduce[me] = acc[part];
        barrier();
        uint i = part * 64u + own;
        if (quarter == 0u && i < p.value_dim) {
            precise float value = (reduce[own] + reduce[64u + own]) + (reduce[128u + own] + reduce[192u + own]);
            partial[out_ + i] = value;
        }
        barrier();
    }
    if (me == 0u) {
        partial[out_ + p.value_dim] = most;
        partial[out_ + p.value_dim + 1u] = sum;
    }
    uint chunks = (context + CHUNK - 1u) / CHUNK, skipped_chunks = first / CHUNK;
    if (is_last(p.ticket + head, chunks - skipped_chunks)) { merge(t, h, skipped_chunks, chunks, head * p.chunks); }
}
