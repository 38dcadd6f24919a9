#version 450
// Adds the chunks of attend.comp up in ascending order, divides by the sum of weights, and applies the output gate.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint QUANT = 0u;  // heads are whole blocks of 32, and are quantised too

layout(binding = 0, std430) readonly buffer Partial { float partial[]; };
layout(binding = 1, std430) readonly buffer Queries { float queries[]; };
layout(binding = 2, std430) readonly buffer Block { uint block[]; };
layout(binding = 3, std430) writeonly buffer Out { float y[]; };
layout(binding = 4, std430) writeonly buffer Q { uint q[]; };
layout(binding = 5, std430) writeonly buffer D { vec2 d[]; };
#include "quantise.glsl"

layout(push_constant) uniform Push { uint heads, dim, stride, first_token, chunks, positions, gated; } p;

shared float head[512];

void main() {
    uint h = gl_WorkGroupID.x, t = p.first_token + gl_WorkGroupID.y, me = gl_LocalInvocationID.x;
    uint chunks = block[p.positions + t] / 512u + 1u, base = (gl_WorkGroupID.y * p.heads + h) * p.chunks;
    for (uint i = me; i < p.dim; i += 64u) {
        float most = -3.4028234e38;
        precise float sum = 0.0;
        precise float acc = 0.0;
        for (uint c = 0u; c < chunks; c++) {
            uint at = (base + c) * (p.dim + 2u);
            float next = max(most, partial[at + p.dim]);
            float old = c > 0u ? exp(most - next) : 0.0, new_ = exp(partial[at + p.dim] - next);
            precise float a = acc * old;
            acc = a + partial[at + i] * new_;
            precise float s = sum * old;
            sum = s + partial[at + p.dim + 1u] * new_;
            most = next;
        }
        precise float out_ = acc / sum;
        if (p.gated == 1u) { out_ = out_ * sigmoid(queries[(t * p.heads + h) * p.stride + p.dim + i]); }
        y[(t * p.heads + h) * p.dim + i] = out_;
        head[i] = out_;
    }
    if (QUANT == 0u) { return; }
    barrier();
    for (uint b = me; b < p.dim >> 5; b += 64u) {
        float v[32];
        [[unroll]] for (uint i = 0u; i < 32u; i++) { v[i] = head[32u * b + i]; }
        store_block(v, ((t * p.heads + h) * p.dim >> 5) + b);
    }
}
