#version 450
// Prepares rows for projections: `rms_norm(x, w)`, `silu(gate) * up`, or the row as it is; as f32, and as int8 in blocks of 32 with their scale and sum.
// Mode 3 writes what a row's norm multiplies it by, and nothing else.
// One workgroup a row.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint MODE = 0u;  // 0: as it is, 1: rms norm, 2: swiglu, 3: the norm's factor
layout(constant_id = 1) const uint QUANT = 1u;
layout(constant_id = 2) const uint FLOAT = 0u;

layout(binding = 0, std430) readonly buffer X { float x[]; };
layout(binding = 1, std430) readonly buffer W { float w[]; };     // norm weight, or `up`
layout(binding = 2, std430) readonly buffer Index { uint index[]; };
layout(binding = 3, std430) writeonly buffer Q { uint q[]; };
layout(binding = 4, std430) writeonly buffer D { vec2 d[]; };
layout(binding = 5, std430) writeonly buffer F { float f[]; };

layout(push_constant) uniform Push {
    uint cols;
    uint gather;       // 1: row `i` is row `index[gather_at + i]` of x
    uint gather_at;    // mode 3: where the factors go
    float eps;
} p;

float value(uint from, uint c, float factor) {
    precise float v = x[from + c];
    if (MODE == 1u) { v = (v * factor) * w[c]; }
    if (MODE == 2u) { v = (v * sigmoid(v)) * w[from + c]; }
    return v;
}
#define ROW(i) x[i]
#include "quantise.glsl"
#include "norm_row.glsl"

void main() {
    uint row = gl_WorkGroupID.x;
    uint from = (p.gather == 1u ? index[p.gather_at + row] : row) * p.cols;
    float factor = MODE == 1u || MODE == 3u ? norm_factor(from, p.cols, p.eps) : 1.0;
    if (MODE == 3u) {
        if (gl_LocalInvocationID.x == 0u) { f[p.gather_at + row] = factor; }
        return;
    }
    store_row(row, from, p.cols, factor, FLOAT == 1u, QUANT == 1u);
}
