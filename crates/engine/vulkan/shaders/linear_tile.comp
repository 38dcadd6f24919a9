#version 450
// Projections of many tokens: what linear.comp computes, to the bit, in tiles of 64 rows and up to TOKENS tokens, of quantised weights. A workgroup unpacks 4 blocks
// of 32 columns of its rows, and of its tokens, into shared memory; each invocation multiplies 4 rows by TOKENS / 16 tokens. Weights are read once for TOKENS
// tokens, activations once for 64 rows. The blocks of a row come in ascending order, so one accumulator for the stripe and one for those before it suffice.
// With EXPERTS set, the workgroup's tokens come from a tile of one expert's pairs (group.comp).
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 1) const uint TOKENS = 64u;  // 16, 32 or 64

layout(binding = 3, std430) readonly buffer X { uvec4 x[]; };
layout(binding = 4, std430) readonly buffer Dx { vec2 dx[]; };
layout(binding = 5, std430) readonly buffer Bias { float bias[]; };
layout(binding = 6, std430) buffer Y { float y[]; };
layout(binding = 7, std430) readonly buffer Tiles { uint tiles[]; };
layout(binding = 8, std430) readonly buffer Pairs { uint pairs[]; };
layout(binding = 12, std430) readonly buffer Slots { uint slots[]; };

layout(push_constant) uniform Push { uint rows, cols, n, x_stride, y_stride, has_bias; float add; uint divide, slots_at; } p;

const uint ROWS = 64u, BLOCKS = 4u, EACH = TOKENS / 16u;

// Of each block: two halves of the bytes, [block, half, row or token], and what goes with them, [block, row or token].
shared uvec4 w_bytes[BLOCKS * 2u * ROWS];
shared float w_d0[BLOCKS * ROWS];
shared float w_d1[BLOCKS * ROWS];
shared float w_m[BLOCKS * ROWS];
shared uvec4 x_bytes[BLOCKS * 2u * TOKENS];
shared vec2 x_d[BLOCKS * TOKENS];
shared uint source[TOKENS];  // the row of x of each token

void main() {
    uint me = gl_LocalInvocationID.x, first = gl_WorkGroupID.y * TOKENS, count = min(TOKENS, p.n - min(p.n, first)), expert = 0u;
    uint matrix = 0u;  // the expert's number; `expert` is where it lies
    if (EXPERTS != 0u) {
        if (gl_WorkGroupID.y >= tiles[0]) { return; }
        expert = tiles[1u + 3u * gl_WorkGroupID.y];
        first = tiles[2u + 3u * gl_WorkGroupID.y];
        count = tiles[3u + 3u * gl_WorkGroupID.y];
        matrix = expert;
        if (EXPERTS == 2u) {
            uint slot = slots[p.slots_at + expert];
            in_host = slot == 0xffffffffu;
            expert = in_host ? expert : slot;
        }
    }
    if (me < TOKENS) {
        uint id = first + min(me, count - 1u);
        source[me] = EXPERTS != 0u ? pairs[id] / p.divide : id;
    }
    uint blocks = p.cols >> 5, steps = (blocks + 7u) >> 3, x_blocks = p.x_stride >> 5;
    uint own_row = me & 15u, own_token = me >> 4;  // of 16, the first of each 16
    // the row that this invocation unpacks
    uint unpacked = me & 63u, w_row = expert * p.rows + min(gl_WorkGroupID.x * ROWS + unpacked, p.rows - 1u);
    float acc[4 * EACH];   // of the stripe
    float sum[4 * EACH];   // of the stripes before it
    [[unroll]] for (uint i = 0u; i < 4u * EACH; i++) { acc[i] = 0.0; sum[i] = 0.0; }
    uint in_stripe = 0u, stripes = 0u;
    for (uint from = 0u; from < blocks; from += BLOCKS) {
        barrier();
        uint k = me >> 6, block = min(from + k, blocks - 1u), stripe = block / steps;
        Block b = load_block((w_row * steps + block - stripe * steps) * 8u + stripe, w_row, block, blocks);
        w_bytes[2u * ROWS * k + unpacked] = uvec4(b.q[0], b.q[1], b.q[2], b.q[3]);
        w_bytes[2u * ROWS * k + ROWS + unpacked] = uvec4(b.q[4], b.q[5], b.q[6], b.q[7]);
        w_d0[ROWS * k + unpacked] = b.d0;
        w_d1[ROWS * k + unpacked] = b.d1;
        w_m[ROWS * k + unpacked] = b.m;
        if (me < BLOCKS * TOKENS) {
            uint t = me >> 2, c = me & 3u, at = source[t] * x_blocks + min(from + c, blocks - 1u);
            x_bytes[2u * TOKENS * c + t] = x[2u * at];
            x_bytes[2u * TOKENS * c + TOKENS + t] = x[2u * at + 1u];
            x_d[TOKENS * c + t] = dx[at];
        }
        barrier();
        for (uint c = 0u; c < min(BLOCKS, blocks - from); c++) {
            if (in_stripe == steps) {
                [[unroll]] for (uint i = 0u; i < 4u * EACH; i++) {
                    precise float next = sum[i] + acc[i];
                    sum[i] = stripes == 0u ? acc[i] : next;
                    acc[i] = 0.0;
                }
                in_stripe = 0u;
                stripes++;
            }
            in_stripe++;
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                uint r = own_row + 16u * i;
                uvec4 lo = w_bytes[2u * ROWS * c + r], hi = w_bytes[2u * ROWS * c + ROWS + r];
                Block w;
                w.q[0] = lo.x; w.q[1] = lo.y; w.q[2] = lo.z; w.q[3] = lo.w;
                w.q[4] = hi.x; w.q[5] = hi.y; w.q[6] = hi.z; w.q[7] = hi.w;
                w.d0 = w_d0[ROWS * c + r];
                w.d1 = HALVES ? w_d1[ROWS * c + r] : w.d0;
                w.m = MINIMUM ? w_m[ROWS * c + r] : 0.0;
                [[unroll]] for (uint j = 0u; j < EACH; j++) {
                    uint t = own_token + 16u * j;
                    vec2 d = x_d[TOKENS * c + t];
                    precise float next = acc[EACH * i + j]
                        + block_term(w, x_bytes[2u * TOKENS * c + t], x_bytes[2u * TOKENS * c + TOKENS + t], d.x, d.y);
                    acc[EACH * i + j] = next;
                }
            }
        }
    }
    [[unroll]] for (uint j = 0u; j < EACH; j++) {
        uint t = own_token + 16u * j;
        if (t >= count) { continue; }
        uint to = (EXPERTS != 0u ? pairs[first + t] : first + t) * p.y_stride;
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            uint r = gl_WorkGroupID.x * ROWS + own_row + 16u * i;
            if (r >= p.rows) { continue; }
            precise float all = stripes == 0u ? acc[EACH * i + j] : sum[EACH * i + j];
            if (stripes != 0u) { all = all + acc[EACH * i + j]; }
            // stripes without a block: to add nothing still makes -0 a 0
            if (stripes < 7u) { all = all + 0.0; }
            if (p.has_bias == 1u) { all = all + bias[matrix * p.rows + r]; }
            if (p.add != 0.0) {
                precise float term = p.add * all;
                all = y[to + r] + term;
            }
            y[to + r] = all;
        }
    }
}
