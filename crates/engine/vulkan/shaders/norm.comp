#version 450
// Prepares rows for projections: `rms_norm(x, w)`, `silu(gate) * up`, or the row as it is; as f32, and as int8 in blocks of 32 with their scale and sum.
// One workgroup a row.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint MODE = 0u;  // 0: as it is, 1: rms norm, 2: swiglu
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
    uint gather_at;
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
    if (MODE == 1u) {
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
    if (FLOAT == 1u) {
        for (uint c = me; c < p.cols; c += 128u) { f[row * p.cols + c] = value(from, c, scale); }
    }
    if (QUANT == 1u) {
        for (uint b = me; b < (p.cols >> 5); b += 128u) {
            float v[32];
            float most = 0.0;
            [[unroll]] for (uint i = 0u; i < 32u; i++) {
                v[i] = value(from, 32u * b + i, scale);
                most = max(most, abs(v[i]));
            }
            precise float step = most / 127.0;
            float inverse = most > 0.0 ? 127.0 / most : 0.0;
            int total = 0;
            [[unroll]] for (uint w4 = 0u; w4 < 8u; w4++) {
                uint word = 0u;
                [[unroll]] for (uint i = 0u; i < 4u; i++) {
                    precise float scaled = v[4u * w4 + i] * inverse;
                    int n = clamp(round_away(scaled), -127, 127);
                    total += n;
                    word |= (uint(n) & 255u) << (8u * i);
                }
                q[(row * p.cols >> 2) + 8u * b + w4] = word;
            }
            d[(row * p.cols >> 5) + b] = vec2(step, float(total));
        }
    }
}
