#version 450
// Products of rows with what depends on a whole row. A workgroup has a row; the order of its sums does not depend on other rows.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 128) in;
// 0: y = act(max(y - bound, 0)) x, where the bound is so many deviations above the row's mean; 1: y gets the root mean square of x
layout(constant_id = 0) const uint MODE = 0u;

layout(binding = 0, std430) buffer Y { float y[]; };
layout(binding = 1, std430) readonly buffer X { float x[]; };

layout(push_constant) uniform Push {
    uint rows, width;
    uint x_at, x_stride;  // where the rows of x begin
    float number;         // deviations; or the least mean square of y that is divided by
    float alpha, limit;   // of the activation
} p;

#include "act.glsl"

shared float sums[128];

// The mean of a row of which each invocation has added its part.
float mean(float own) {
    uint me = gl_LocalInvocationID.x;
    sums[me] = own;
    barrier();
    for (uint half_ = 64u; half_ > 0u; half_ >>= 1) {
        if (me < half_) { precise float s = sums[me] + sums[me + half_]; sums[me] = s; }
        barrier();
    }
    float all = sums[0] / float(p.width);
    barrier();
    return all;
}

void main() {
    uint row = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x, me = gl_LocalInvocationID.x;
    if (row >= p.rows) { return; }
    uint at = row * p.width, from = row * p.x_stride + p.x_at;
    if (MODE == 0u) {
        precise float sum = 0.0;
        for (uint c = me; c < p.width; c += 128u) { sum = sum + y[at + c]; }
        float middle = mean(sum);
        precise float squares = 0.0;
        for (uint c = me; c < p.width; c += 128u) {
            precise float off = y[at + c] - middle;
            squares = squares + off * off;
        }
        precise float bound = middle + p.number * sqrt(mean(squares));
        for (uint c = me; c < p.width; c += 128u) {
            precise float above = y[at + c] - bound;
            y[at + c] = activated_times(max(above, 0.0), x[from + c]);
        }
        return;
    }
    precise float of_x = 0.0;
    precise float of_y = 0.0;
    for (uint c = me; c < p.width; c += 128u) {
        of_x = of_x + x[from + c] * x[from + c];
        of_y = of_y + y[at + c] * y[at + c];
    }
    float size = mean(of_x);
    precise float factor = sqrt(size) / sqrt(max(mean(of_y), p.number));
    for (uint c = me; c < p.width; c += 128u) {
        precise float v = y[at + c] * factor;
        y[at + c] = v;
    }
}
