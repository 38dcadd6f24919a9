#version 450
// A projection of a few tokens (linear.comp) that completes rows, and their RMS norm for the projections of the next stage, which the last workgroup
// does.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define RESIDENT
#include "weights.glsl"
#define COHERENT coherent
layout(local_size_x_id = 3) in;  // 64, or 256 where stripes are split

layout(binding = 7, std430) readonly buffer W { float w[]; };     // the norm's
layout(binding = 8, std430) writeonly buffer Q { uint q[]; };
layout(binding = 9, std430) writeonly buffer D { vec2 d[]; };
layout(binding = 10, std430) writeonly buffer F { float f[]; };
layout(binding = 11, std430) coherent buffer Tickets { uint tickets[]; };

layout(push_constant) uniform Push {
    uint rows, cols, n, x_stride, y_stride, has_bias; float add;
    float eps;
    uint forms;
    uint ticket;
} p;

#include "linear.glsl"
#define ROW(i) y[i]
#include "norm_tail.glsl"

void main() {
    project();
    if (!is_last(p.ticket, gl_NumWorkGroups.x)) { return; }
    for (uint t = 0u; t < p.n; t++) { norm_row(t, p.rows, p.eps, p.forms); }
}
