#version 450
// Mamba-2: convolution and recurrence (arXiv 2405.21060, section 7), token by token, in prefill as in decode. A workgroup has 32 rows of one head's state, 8
// threads a row, each with a stripe of its values in registers. The states of the convolution are advanced by conv_state.comp, which runs after this.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint VALUES = 16u;  // of the state per thread: state / 8, rounded up

layout(binding = 0, std430) readonly buffer Xbc { float xbc[]; };
layout(binding = 1, std430) readonly buffer Dt { float dt[]; };
layout(binding = 2, std430) readonly buffer Taps { float taps[]; };
layout(binding = 3, std430) readonly buffer ConvBias { float conv_bias[]; };
layout(binding = 4, std430) readonly buffer DtBias { float dt_bias[]; };
layout(binding = 5, std430) readonly buffer A { float a[]; };
layout(binding = 6, std430) readonly buffer Skip { float skip_[]; };
layout(binding = 7, std430) readonly buffer Conv { float conv[]; };
layout(binding = 8, std430) buffer State { float state[]; };
layout(binding = 9, std430) readonly buffer Block { uint block[]; };
layout(binding = 10, std430) readonly buffer Kept { float kept[]; };  // inputs of each slot's guesses: [channels | heads]
layout(binding = 11, std430) readonly buffer Z { float z[]; };
layout(binding = 12, std430) writeonly buffer Out { float y[]; };

layout(push_constant) uniform Push {
    uint heads, groups, dim, state, channels, rows;  // rows: of the convolution's state
    uint spans, kept_rows;
    uint slices;    // of 32 rows
    uint has_bias;
} p;

shared float b_[512];
shared float c_[512];
shared float x_[32];
shared float partial[256];

// Where the kept inputs of a slot's guess start.
uint kept_at(uint slot, uint guess) { return (slot * p.kept_rows + guess) * (p.channels + p.heads); }

// Output of the convolution for channel `c` of the span's token `i`, through silu. Before the span's own tokens come `redo` kept ones.
float convolve(uint start, uint i, uint slot, uint first, uint redo, uint c) {
    precise float sum = 0.0;
    for (uint j = 0u; j <= p.rows; j++) {
        uint at = i + j;  // in the window of carried rows, then the span's tokens
        float x;
        if (at < p.rows) { x = conv[(slot * p.rows + at) * p.channels + c]; }
        else if (at - p.rows < redo) { x = kept[kept_at(slot, first + at - p.rows) + c]; }
        else { x = xbc[(start + at - p.rows - redo) * p.channels + c]; }
        sum = sum + taps[j * p.channels + c] * x;
    }
    if (p.has_bias == 1u) { sum = sum + conv_bias[c]; }
    precise float out_ = sum * sigmoid(sum);
    return out_;
}

// `max(x, 0) + ln(1 + u)` with `u = e^-|x|`, and `ln(1 + u) = 2 atanh(u / (2 + u))`: a time step may be tiny, and the device's `log` has an absolute error.
float softplus(float x) {
    float u = exp(-abs(x));
    precise float t = u / (2.0 + u);
    precise float t2 = t * t;
    precise float series = 2.0 + t2 * (0.6666632 + t2 * (0.40024674 + t2 * (0.2796381 + t2 * 0.2816473)));
    precise float y = max(x, 0.0) + series * t;
    return y;
}

void main() {
    uint span = gl_WorkGroupID.y, h = gl_WorkGroupID.x / p.slices, slice = gl_WorkGroupID.x % p.slices, me = gl_LocalInvocationID.x;
    uint own = slice * 32u + (me >> 3), stripe = me & 7u, first = stripe * VALUES;
    uint start = block[p.spans + 4u * span], len = block[p.spans + 4u * span + 1u], slots = block[p.spans + 4u * span + 2u];
    uint slot = slots & 0xffffu, from = slots >> 16;  // the state's place, and that of the one to start with
    uint guessed = block[p.spans + 4u * span + 3u], guesses = guessed & 255u, again_from = (guessed >> 8) & 255u, redo = guessed >> 16;
    uint certain = redo + len - guesses;
    uint inner = p.heads * p.dim, group = h / (p.heads / p.groups);
    bool inside = own < p.dim;
    uint row = (h * p.dim + own) * p.state, size = inner * p.state;
    float s[VALUES];
    [[unroll]] for (uint v = 0u; v < VALUES; v++) {
        s[v] = inside && first + v < p.state ? state[from * size + row + first + v] : 0.0;
    }
    for (uint i = 0u; i < redo + len; i++) {
        uint t = start + i - redo;  // meaningless for what is redone
        for (uint v = me; v < p.state; v += 256u) {
            b_[v] = convolve(start, i, from, again_from, redo, inner + group * p.state + v);
            c_[v] = convolve(start, i, from, again_from, redo, inner + (p.groups + group) * p.state + v);
        }
        if (me < 32u && slice * 32u + me < p.dim) {
            x_[me] = convolve(start, i, from, again_from, redo, h * p.dim + slice * 32u + me);
        }
        barrier();
        float time = softplus((i < redo ? kept[kept_at(from, again_from + i) + p.channels + h] : dt[t * p.heads + h]) + dt_bias[h]);
        precise float exponent = a[h] * time;
        float decay = exp(exponent), x = x_[me >> 3];
        precise float input_ = time * x;
        precise float read = 0.0;
        [[unroll]] for (uint v = 0u; v < VALUES; v++) {
            if (first + v < p.state) {
                precise float next = s[v] * decay;
                next = next + input_ * b_[first + v];
                s[v] = next;
                read = read + next * c_[first + v];
            }
        }
        partial[me] = read;
        barrier();
        if (stripe == 0u && inside && i >= redo) {
            precise float all = partial[me];
            for (uint l = 1u; l < 8u; l++) { all = all + partial[me + l]; }
            all = all + skip_[h] * x;
            float g = z[t * inner + h * p.dim + own];
            precise float gated = all * (g * sigmoid(g));
            y[t * inner + h * p.dim + own] = gated;
        }
        barrier();
        if (i + 1u == certain) {  // guesses leave no trace
            [[unroll]] for (uint v = 0u; v < VALUES; v++) {
                if (inside && first + v < p.state) { state[slot * size + row + first + v] = s[v]; }
            }
        }
    }
}
