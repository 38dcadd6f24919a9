#version 450
// The first half of a gated block in one: gate and up projections, `act(gate) * up`, and its quantisation. A workgroup has 32 rows of both, one block of the
// result, 8 lanes each, and up to TOKENS tokens; with EXPERTS set those of a tile (group.comp). The bits are those of linear.comp and norm.comp.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define TWO_MATRICES
#include "weights.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 1) const uint TOKENS = 1u;

layout(binding = 6, std430) readonly buffer X { uvec4 x[]; };
layout(binding = 7, std430) readonly buffer Dx { vec2 dx[]; };
layout(binding = 8, std430) writeonly buffer Q { uint q[]; };
layout(binding = 9, std430) writeonly buffer D { vec2 d[]; };
layout(binding = 10, std430) readonly buffer Tiles { uint tiles[]; };
layout(binding = 11, std430) readonly buffer Pairs { uint pairs[]; };
#include "quantise.glsl"

layout(push_constant) uniform Push { uint rows, cols, n, divide; float alpha, limit; } p;

#include "act.glsl"

const uint EACH = TOKENS == 1u ? 4u : 1u;  // blocks that an invocation reads at a time
shared float partial[256 * TOKENS];
shared float gate[32 * TOKENS];
shared float up[32 * TOKENS];

void main() {
    uint me = gl_LocalInvocationID.x, lane = me & 7u, slot = me >> 3, row = gl_WorkGroupID.x * 32u + slot;
    uint first = gl_WorkGroupID.y * TOKENS, count = min(TOKENS, p.n - min(p.n, first)), expert = 0u;
    if (EXPERTS != 0u) {
        if (gl_WorkGroupID.y >= tiles[0]) { return; }
        expert = tiles[1u + 3u * gl_WorkGroupID.y];
        first = tiles[2u + 3u * gl_WorkGroupID.y];
        count = tiles[3u + 3u * gl_WorkGroupID.y];
    }
    uint source[TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
        uint id = min(t, count - 1u) + first;
        source[t] = EXPERTS != 0u ? pairs[id] / p.divide : id;
    }
    uint w_row = expert * p.rows + row, blocks = p.cols >> 5, steps = (blocks + 7u) >> 3;
    for (uint m = 0u; m < 2u; m++) {
        second = m == 1u;
        float acc[TOKENS];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) { acc[t] = 0.0; }
        for (uint from = 0u; from < steps; from += EACH) {
            float terms[EACH * TOKENS];
            [[unroll]] for (uint e = 0u; e < EACH; e++) {
                uint step_ = min(from + e, steps - 1u), block = min(lane * steps + step_, blocks - 1u);
                Block b = load_block((w_row * steps + step_) * 8u + lane, w_row, block, blocks);
                [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                    uint at = source[t] * blocks + block;
                    vec2 scale = dx[at];
                    terms[e * TOKENS + t] = block_term(b, x[2u * at], x[2u * at + 1u], scale.x, scale.y);
                }
            }
            [[unroll]] for (uint e = 0u; e < EACH; e++) {
                if (from + e >= steps || lane * steps + from + e >= blocks) { break; }
                [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                    precise float next = acc[t] + terms[e * TOKENS + t];
                    acc[t] = next;
                }
            }
        }
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) { partial[t * 256u + me] = acc[t]; }
        barrier();
        for (uint i = me; i < 32u * count; i += 256u) {
            uint t = i >> 5, r = i & 31u;
            precise float sum = partial[t * 256u + r * 8u];
            for (uint l = 1u; l < 8u; l++) { sum = sum + partial[t * 256u + r * 8u + l]; }
            if (m == 0u) { gate[i] = sum; } else { up[i] = sum; }
        }
        barrier();
    }
    if (me >= count) { return; }
    float v[32];
    [[unroll]] for (uint i = 0u; i < 32u; i++) {
        v[i] = activated_times(gate[32u * me + i], up[32u * me + i]);
    }
    uint to = EXPERTS != 0u ? pairs[first + me] : first + me;
    store_block(v, to * (p.rows >> 5) + gl_WorkGroupID.x);
}
