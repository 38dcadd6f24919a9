#version 450
// The gated norm of Gated DeltaNet, `rms_norm(o, w) * silu(z)`, in place. One workgroup a head.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint QUANT = 0u;  // heads are whole blocks of 32, and are quantised too

layout(binding = 0, std430) buffer O { float o[]; };
layout(binding = 1, std430) readonly buffer Z { float z[]; };
layout(binding = 2, std430) readonly buffer W { float w[]; };
layout(binding = 3, std430) writeonly buffer Q { uint q[]; };
layout(binding = 4, std430) writeonly buffer D { vec2 d[]; };
#include "quantise.glsl"

layout(push_constant) uniform Push { uint heads, dim; float eps; } p;

shared float sums[64];
shared float head[512];

void main() {
    uint from = (gl_WorkGroupID.y * p.heads + gl_WorkGroupID.x) * p.dim, me = gl_LocalInvocationID.x;
    precise float sum = 0.0;
    for (uint i = me; i < p.dim; i += 64u) { sum = sum + o[from + i] * o[from + i]; }
    sums[me] = sum;
    barrier();
    for (uint half_ = 32u; half_ > 0u; half_ >>= 1) {
        if (me < half_) { precise float s = sums[me] + sums[me + half_]; sums[me] = s; }
        barrier();
    }
    precise float mean = sums[0] / float(p.dim) + p.eps;
    float scale = 1.0 / sqrt(mean);
    for (uint i = me; i < p.dim; i += 64u) {
        precise float y = (o[from + i] * scale) * w[i];
        precise float g = z[from + i] * sigmoid(z[from + i]);
        precise float out_ = y * g;
        o[from + i] = out_;
        head[i] = out_;
    }
    if (QUANT == 0u) { return; }
    barrier();
    for (uint b = me; b < p.dim >> 5; b += 64u) {
        float v[32];
        [[unroll]] for (uint i = 0u; i < 32u; i++) { v[i] = head[32u * b + i]; }
        store_block(v, (from >> 5) + b);
    }
}
