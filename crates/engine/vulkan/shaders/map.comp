#version 450
// Element by element: sums, products with an activation, logits with a factor and a cap, copies of parts of rows.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 256) in;
// 0: y += scale x; 1: y *= scale; 2: y *= sigmoid(x); 3: y = act(y) x; 4: y = cap tanh(scale y / cap), or scale y; 5: y = x; 6: y within bounds; 7: y *= x;
// 8: as 2, by the first x of the row; 9: y *= softplus(x); 10: as 9, by the first x of the row
layout(constant_id = 0) const uint MODE = 0u;

layout(binding = 0, std430) buffer Y { float y[]; };
layout(binding = 1, std430) readonly buffer X { float x[]; };

layout(push_constant) uniform Push {
    uint len;
    uint width;          // values of a row
    uint x_at, x_stride; // where the rows of x begin
    uint y_at, y_stride; // the same of y
    float scale;
    float alpha, limit;  // of the activation; or the cap; or the bounds
} p;

#include "act.glsl"

void main() {
    uint i = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 256u + gl_LocalInvocationID.x;
    if (i >= p.len) { return; }
    uint row = i / p.width, c = i % p.width;
    uint at = row * p.y_stride + p.y_at + c, from = row * p.x_stride + p.x_at + (MODE == 8u || MODE == 10u ? 0u : c);
    precise float v = 0.0;
    if (MODE == 0u) { v = y[at] + p.scale * x[from]; }
    if (MODE == 1u) { v = y[at] * p.scale; }
    if (MODE == 2u || MODE == 8u) { v = y[at] * sigmoid(x[from]); }
    if (MODE == 9u || MODE == 10u) {
        float g = x[from];
        // 1 + e^-|g| loses small values, whose logarithm is themselves.
        float e = exp(-abs(g));
        v = y[at] * (max(g, 0.0) + (e < 0.0001 ? e : log(1.0 + e)));
    }
    if (MODE == 3u) { v = activated_times(y[at], x[from]); }
    if (MODE == 4u) {
        v = y[at] * p.scale;
        if (p.limit > 0.0) { v = capped(v, p.limit); }
    }
    if (MODE == 5u) { v = x[from]; }
    if (MODE == 6u) { v = min(max(y[at], p.alpha), p.limit); }
    if (MODE == 7u) { v = y[at] * x[from]; }
    y[at] = v;
}
