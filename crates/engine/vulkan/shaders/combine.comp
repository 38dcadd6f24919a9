#version 450
// `h[t] += sum over the token's experts, ascending, share * y[pair]`, the shared expert last.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 128) in;

layout(binding = 0, std430) readonly buffer Y { float y[]; };           // [n, top_k, hidden]
layout(binding = 1, std430) readonly buffer Share { float share[]; };
layout(binding = 2, std430) readonly buffer Shared { float shared_y[]; };  // [n, hidden]
layout(binding = 3, std430) readonly buffer Gate { float gate[]; };
layout(binding = 4, std430) buffer H { float h[]; };

layout(push_constant) uniform Push {
    uint hidden, top_k, has_shared;
    uint is_weighted;  // 1: the experts' inputs are multiplied by their shares already
    float add;         // as in linear.comp
} p;

void main() {
    uint t = gl_WorkGroupID.y, c = gl_WorkGroupID.x * 128u + gl_LocalInvocationID.x;
    if (c >= p.hidden) { return; }
    precise float sum = 0.0;
    for (uint k = 0u; k < p.top_k; k++) {
        precise float term = (p.is_weighted == 1u ? 1.0 : share[t * p.top_k + k]) * y[(t * p.top_k + k) * p.hidden + c];
        sum = sum + term;
    }
    if (p.has_shared == 1u) {
        precise float term = gate[t] * shared_y[t * p.hidden + c];
        sum = sum + term;
    }
    precise float next = p.add * sum;
    if (p.add == 0.0) { next = sum; } else { next = h[t * p.hidden + c] + next; }
    h[t * p.hidden + c] = next;
}
