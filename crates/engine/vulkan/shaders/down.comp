#version 450
// The last projection of a token's experts and their sum: `h[t] += sum over the experts, ascending, share * (w[e] . x[pair])`, the shared expert last. A
// workgroup has 8 rows of one token, 8 lanes each, and 4 experts at a time. For a few tokens, which hardly share experts; linear.comp and combine.comp
// do the same for many, to the same bits. The last workgroup of a token may go on with the RMS norm of its row for the next stage.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define RESIDENT
#include "weights.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 1) const uint TAIL = 0u;

layout(binding = 3, std430) readonly buffer X { uvec4 x[]; };        // int8 activations of each pair
layout(binding = 4, std430) readonly buffer Dx { vec2 dx[]; };
layout(binding = 5, std430) readonly buffer Chosen { uint chosen[]; };   // [n, top_k], ascending
layout(binding = 6, std430) readonly buffer Share { float share[]; };
layout(binding = 7, std430) readonly buffer Shared { float shared_y[]; };
layout(binding = 8, std430) readonly buffer Gate { float gate[]; };
layout(binding = 9, std430) coherent buffer H { float h[]; };
layout(binding = 10, std430) readonly buffer W { float w[]; };     // the norm's
layout(binding = 11, std430) writeonly buffer Q { uint q[]; };
layout(binding = 12, std430) writeonly buffer D { vec2 d[]; };
layout(binding = 13, std430) writeonly buffer F { float f[]; };
layout(binding = 14, std430) coherent buffer Tickets { uint tickets[]; };

layout(push_constant) uniform Push { uint rows, cols, top_k, has_shared; float add, eps; uint forms, ticket; } p;  // add: as in linear.comp

#define ROW(i) h[i]
#include "norm_tail.glsl"

const uint EACH = 2u;  // blocks that an invocation reads at a time
shared float partial[256];
shared float all[32 * 8];

void add_experts() {
    uint me = gl_LocalInvocationID.x, lane = me & 7u, slot = (me >> 3) & 7u, group = me >> 6, t = gl_WorkGroupID.y;
    uint row = gl_WorkGroupID.x * 8u + slot, blocks = p.cols >> 5, steps = (blocks + 7u) >> 3;
    for (uint first = 0u; first < p.top_k; first += 4u) {
        uint k = first + group;
        float acc = 0.0;
        if (k < p.top_k) {
            uint pair = t * p.top_k + k, w_row = chosen[pair] * p.rows + min(row, p.rows - 1u);
            for (uint from = 0u; from < steps; from += EACH) {
                float terms[EACH];
                [[unroll]] for (uint e = 0u; e < EACH; e++) {
                    uint step_ = min(from + e, steps - 1u), block = min(lane * steps + step_, blocks - 1u);
                    Block b = load_block((w_row * steps + step_) * 8u + lane, w_row, block, blocks);
                    uint at = pair * blocks + block;
                    vec2 d = dx[at];
                    terms[e] = block_term(b, x[2u * at], x[2u * at + 1u], d.x, d.y);
                }
                [[unroll]] for (uint e = 0u; e < EACH; e++) {
                    if (from + e >= steps || lane * steps + from + e >= blocks) { break; }
                    precise float next = acc + terms[e];
                    acc = next;
                }
            }
        }
        partial[me] = acc;
        barrier();
        if (lane == 0u && k < p.top_k) {
            precise float sum = partial[me];
            for (uint l = 1u; l < 8u; l++) { sum = sum + partial[me + l]; }
            all[k * 8u + slot] = sum;
        }
        barrier();
    }
    uint r = gl_WorkGroupID.x * 8u + me;
    if (me >= 8u || r >= p.rows) { return; }
    precise float sum = 0.0;
    for (uint k = 0u; k < p.top_k; k++) {
        precise float term = share[t * p.top_k + k] * all[k * 8u + me];
        sum = sum + term;
    }
    if (p.has_shared == 1u) {
        precise float term = gate[t] * shared_y[t * p.rows + r];
        sum = sum + term;
    }
    precise float next = p.add * sum;
    if (p.add == 0.0) { next = sum; } else { next = h[t * p.rows + r] + next; }
    h[t * p.rows + r] = next;
}

void main() {
    add_experts();
    if (TAIL == 0u) { return; }
    uint t = gl_WorkGroupID.y;
    if (is_last(p.ticket + t, gl_NumWorkGroups.x)) { norm_row(t, p.rows, p.eps, p.forms); }
}
