// The gated norm of one head of Gated DeltaNet, `rms_norm(o, w) * silu(z)` or `* sigmoid(z)`, in place, by 64 or more invocations; and in 8 bits where the heads are whole
// blocks of 32. Who includes this declares the buffers o, z, w, q and d.
#include "quantise.glsl"
shared float norm_sums[64];
shared float normed[512];

void gated_norm(uint from, uint dim, float eps, bool quantise, bool is_sigmoid) {
    uint me = gl_LocalInvocationID.x;
    if (me < 64u) {
        precise float sum = 0.0;
        for (uint i = me; i < dim; i += 64u) { sum = sum + o[from + i] * o[from + i]; }
        norm_sums[me] = sum;
    }
    barrier();
    for (uint half_ = 32u; half_ > 0u; half_ >>= 1) {
        if (me < half_) { precise float s = norm_sums[me] + norm_sums[me + half_]; norm_sums[me] = s; }
        barrier();
    }
    precise float mean = norm_sums[0] / float(dim) + eps;
    float scale = 1.0 / sqrt(mean);
    for (uint i = me; i < dim; i += gl_WorkGroupSize.x) {
        precise float n = (o[from + i] * scale) * w[i];
        precise float g = is_sigmoid ? sigmoid(z[from + i]) : z[from + i] * sigmoid(z[from + i]);
        precise float out_ = n * g;
        o[from + i] = out_;
        if (quantise) { normed[i] = out_; }
    }
    barrier();
    if (!quantise) { return; }
    for (uint b = me; b < dim >> 5; b += gl_WorkGroupSize.x) {
        float v[32];
        [[unroll]] for (uint i = 0u; i < 32u; i++) { v[i] = normed[32u * b + i]; }
        store_block(v, (from >> 5) + b);
    }
    barrier();
}
