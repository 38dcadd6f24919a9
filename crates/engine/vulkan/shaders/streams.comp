#version 450
// Residual streams (AltUp): each is predicted from all of them before a layer's blocks, or corrected by what these changed in the first one. A workgroup
// has 256 columns of a token.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint MODE = 0u;  // 0: prediction, 1: correction

layout(binding = 0, std430) readonly buffer Routed { float routed[]; };    // [tokens, streams]
layout(binding = 1, std430) readonly buffer Weights { float weights[]; };  // [streams * streams, streams]; of corrections [streams, streams]
layout(binding = 2, std430) readonly buffer Scale { float scale[]; };      // [width]
layout(binding = 3, std430) buffer H { float h[]; };                       // [tokens, width]
layout(binding = 4, std430) buffer Rest { float rest[]; };                 // [tokens, streams - 1, width]
layout(binding = 5, std430) buffer Kept { float kept[]; };                 // [tokens, width]

layout(push_constant) uniform Push {
    uint streams, width;
} p;

const uint MOST = 8u;
shared float mode_[MOST];
shared float weight[MOST * MOST];

void main() {
    uint t = gl_WorkGroupID.y, me = gl_LocalInvocationID.x, s = p.streams;
    if (me < s) { mode_[me] = capped(routed[t * s + me], 1.0); }
    barrier();
    if (me < (MODE == 0u ? s * s : s)) {
        precise float sum = 0.0;
        for (uint i = 0u; i < s; i++) { sum = sum + weights[me * s + i] * mode_[i]; }
        weight[me] = sum;
    }
    barrier();
    uint c = gl_WorkGroupID.x * 256u + me;
    if (c >= p.width) { return; }
    uint own = t * p.width + c, others = t * (s - 1u) * p.width + c;
    if (MODE == 0u) {
        float old[MOST];
        old[0] = h[own];
        for (uint i = 1u; i < s; i++) { old[i] = rest[others + (i - 1u) * p.width]; }
        for (uint i = 0u; i < s; i++) {
            precise float x = old[i];
            for (uint j = 0u; j < s; j++) { x = x + weight[i * s + j] * old[j]; }
            if (i == 0u) {
                h[own] = x;
                kept[own] = x;
            } else {
                rest[others + (i - 1u) * p.width] = x;
            }
        }
        return;
    }
    precise float change = h[own] - kept[own];
    for (uint i = 1u; i < s; i++) {
        uint at = others + (i - 1u) * p.width;
        precise float x = rest[at] + (1.0 + weight[i]) * change;
        rest[at] = x;
    }
    precise float x = kept[own] + (1.0 + weight[0]) * change;
    precise float scaled = scale[c] * x;
    h[own] = x;
    kept[own] = scaled;
}
