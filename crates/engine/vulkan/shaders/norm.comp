#version 450
// Prepares rows for projections: their norm, an activation, or the rows as they are; as f32, and as int8 in blocks of 32 with their scale and sum. Or
// adds a multiple of that to f32 rows. Mode 3 writes what a row's RMS norm multiplies it by, and nothing else.
// One workgroup a row.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 128) in;
// 0: as it is, 1: RMS norm, 2: activated gate times up, 3: the norm's factor, 4: LayerNorm, 5: activation
layout(constant_id = 0) const uint MODE = 0u;
layout(constant_id = 1) const uint QUANT = 1u;
layout(constant_id = 2) const uint FLOAT = 0u;  // 1: written, 2: added

layout(binding = 0, std430) readonly buffer X { float x[]; };
layout(binding = 1, std430) readonly buffer W { float w[]; };     // norm weights, or `up`
layout(binding = 2, std430) readonly buffer Index { uint index[]; };
layout(binding = 3, std430) writeonly buffer Q { uint q[]; };
layout(binding = 4, std430) writeonly buffer D { vec2 d[]; };
layout(binding = 5, std430) buffer F { float f[]; };
layout(binding = 6, std430) readonly buffer Bias { float bias[]; };  // of the norm; or factors of the rows' gate and up

layout(push_constant) uniform Push {
    uint cols;
    uint gather;       // 1: row `i` is row `index[gather_at + i]` of x
    uint gather_at;    // mode 3: where the factors go
    float eps;
    uint stride;       // from one row of x to the next
    uint weights;      // rows of norm weights, which rows take in turn
    uint has_bias;
    float add;         // factor of what is added
    float alpha, limit;
} p;

#include "act.glsl"

float mean_ = 0.0;
uint weight_at = 0u;
float row_factor = 1.0;  // of gate and up

float value(uint from, uint c, float factor) {
    precise float v = x[from + c];
    if (MODE == 1u || MODE == 4u) {
        if (MODE == 4u) { v = v - mean_; }
        v = (v * factor) * w[weight_at + c];
        if (p.has_bias == 1u) { v = v + bias[c]; }
    }
    if (MODE == 2u || MODE == 5u) {
        if (p.has_bias == 1u) { v = v * row_factor; }
        if (MODE == 5u) { return activate(v); }
        precise float up = w[from + c];
        if (p.has_bias == 1u) { up = up * row_factor; }
        v = activated_times(v, up);
    }
    return v;
}
#define ROW(i) (MODE == 4u ? centred(i) : x[i])
float centred(uint i) {
    precise float v = x[i] - mean_;
    return v;
}
#include "quantise.glsl"
#include "norm_row.glsl"

// The mean of a row, in the order of `norm_factor`.
float mean_of(uint from, uint cols) {
    uint me = gl_LocalInvocationID.x;
    precise float sum = 0.0;
    for (uint c = me; c < cols; c += 128u) { sum = sum + x[from + c]; }
    sums[me] = sum;
    barrier();
    for (uint half_ = 64u; half_ > 0u; half_ >>= 1) {
        if (me < half_) { precise float s = sums[me] + sums[me + half_]; sums[me] = s; }
        barrier();
    }
    float mean = sums[0] / float(cols);
    barrier();
    return mean;
}

void main() {
    uint row = gl_WorkGroupID.x;
    uint from = (p.gather == 1u ? index[p.gather_at + row] : row) * p.stride;
    weight_at = (row % p.weights) * p.cols;
    if ((MODE == 2u || MODE == 5u) && p.has_bias == 1u) { row_factor = bias[row]; }
    if (MODE == 4u) { mean_ = mean_of(from, p.cols); }
    float factor = MODE == 1u || MODE == 3u || MODE == 4u ? norm_factor(from, p.cols, p.eps) : 1.0;
    if (MODE == 3u) {
        if (gl_LocalInvocationID.x == 0u) { f[p.gather_at + row] = factor; }
        return;
    }
    if (FLOAT == 2u) {
        for (uint c = gl_LocalInvocationID.x; c < p.cols; c += 128u) {
            precise float sum = f[row * p.cols + c] + p.add * value(from, c, factor);
            f[row * p.cols + c] = sum;
        }
    }
    store_row(row, from, p.cols, factor, FLOAT == 1u, QUANT == 1u);
}
