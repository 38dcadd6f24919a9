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

#include "quantise.glsl"

layout(push_constant) uniform Push {
    uint cols;
    uint gather;       // 1: row `i` is row `index[gather_at + i]` of x
    uint gather_at;    // mode 3: where the factors go
    float eps;
} p;

shared float sums[128];

float value(uint from, uint c, float scale) {
    precise float v = x[from + c];
    if (MODE == 1u) { v = (v * scale) * w[c]; }
    if (MODE == 2u) { v = (v * sigmoid(v)) * w[from + c]; }
    return v;
}

void main() {
    uint row = gl_WorkGroupID.x, me = gl_LocalInvocationID.x;
    uint from = (p.gather == 1u ? index[p.gather_at + row] : row) * p.cols;
    float scale = 1.0;
    if (MODE == 1u || MODE == 3u) {
        precise float sum = 0.0;
        for (uint c = me; c < p.cols; c += 128u) { sum = sum + x[from + c] * x[from + c]; }
        sums[me] = sum;
        barrier();
        for (uint half_ = 64u; half_ > 0u; half_ >>= 1) {
            if (me < half_) { precise float s = sums[me] + sums[me + half_]; sums[me] = s; }
            barrier();
        }
        precise float mean = sums[0] / float(p.cols) + p.eps;
        scale = 1.0 / sqrt(mean);
    }
    if (MODE == 3u) {
        if (me == 0u) { f[p.gather_at + row] = scale; }
        return;
    }
    if (FLOAT == 1u) {
        for (uint c = me; c < p.cols; c += 128u) { f[row * p.cols + c] = value(from, c, scale); }
    }
    if (QUANT == 1u) {
        for (uint b = me; b < (p.cols >> 5); b += 128u) {
            float v[32];
            [[unroll]] for (uint i = 0u; i < 32u; i++) { v[i] = value(from, 32u * b + i, scale); }
            store_block(v, (row * p.cols >> 5) + b);
        }
    }
}
