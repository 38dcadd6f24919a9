#version 450
// Gated DeltaNet: convolution, l2 norms and the delta rule (arXiv 2412.06464, section 3), token by token, in prefill as in decode. A workgroup has 32 columns of one value head's state, 8 threads
// a column, each with a stripe of its rows in registers. The states of the convolution are advanced by conv_state.comp.
// Of a few tokens, the last workgroup of a head does the gated norm, too.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint ROWS = 16u;  // rows of the state per thread: k_dim / 8, rounded up
layout(constant_id = 1) const uint TILED = 1u;
layout(constant_id = 2) const uint TAIL = 0u;  // 1: the gated norm; 2: and its quantisation
layout(constant_id = 3) const uint KIND = 0u;  // 1: each row of the state decays by itself; 2: the gate is a sigmoid; 3: both

layout(binding = 0, std430) readonly buffer Qkv { float qkv[]; };
layout(binding = 1, std430) readonly buffer Beta { float beta_in[]; };
layout(binding = 2, std430) readonly buffer Alpha { float alpha[]; };
layout(binding = 3, std430) readonly buffer Taps { float taps[]; };
layout(binding = 4, std430) readonly buffer DtBias { float dt_bias[]; };
layout(binding = 5, std430) readonly buffer A { float a[]; };
layout(binding = 6, std430) readonly buffer Conv { float conv[]; };
layout(binding = 7, std430) buffer State { float state[]; };
layout(binding = 8, std430) readonly buffer Block { uint block[]; };
layout(binding = 9, std430) coherent buffer Out { float o[]; };
layout(binding = 10, std430) readonly buffer Kept { float kept[]; };  // inputs of each slot's guesses: [channels | v_heads | decays]
layout(binding = 11, std430) readonly buffer Z { float z[]; };
layout(binding = 12, std430) readonly buffer W { float w[]; };
layout(binding = 13, std430) writeonly buffer Q { uint q[]; };
layout(binding = 14, std430) writeonly buffer D { vec2 d[]; };
layout(binding = 15, std430) coherent buffer Tickets { uint tickets[]; };

layout(push_constant) uniform Push {
    uint k_heads, v_heads, k_dim, v_dim, channels, kernel;
    uint spans;  // in the block: (start, len, slot | from << 16, guesses | first << 8 | redo << 16) of each span
    uint slices; // of 32 columns
    float scale; // k_dim^-0.5
    uint kept_rows; // of a slot
    float eps;      // of the gated norm
    uint ticket;
} p;

#include "gated_norm.glsl"
#include "tail.glsl"

shared float query[512];
shared float key[512];
shared float decays[(KIND & 1u) == 1u ? 512 : 1];
shared float v[32];
shared float partial[256];
shared float sums[256];

// Decays of a token.
uint decays_of() { return (KIND & 1u) == 0u ? p.v_heads : p.v_heads * p.k_dim; }

// Where the kept inputs of a slot's guess start.
uint kept_at(uint slot, uint guess) { return (slot * p.kept_rows + guess) * (p.channels + p.v_heads + decays_of()); }

// Output of the convolution for channel `c` of the span's token `i`, through silu. Before the span's own tokens come `redo` kept ones.
float convolve(uint start, uint i, uint slot, uint first, uint redo, uint c) {
    uint rows = p.kernel - 1u;
    precise float sum = 0.0;
    for (uint j = 0u; j < p.kernel; j++) {
        uint at = i + j;  // in the window of carried rows, then the span's tokens
        float x;
        if (at < rows) { x = conv[(slot * rows + at) * p.channels + c]; }
        else if (at - rows < redo) { x = kept[kept_at(slot, first + at - rows) + c]; }
        else { x = qkv[(start + at - rows - redo) * p.channels + c]; }
        sum = sum + taps[j * p.channels + c] * x;
    }
    return sum * sigmoid(sum);
}

float softplus(float x) { return x > 20.0 ? x : x < -15.0 ? exp(x) : log(1.0 + exp(x)); }

// Decay `i` of token `t`, or of what is redone, whose inputs are at `again`.
float decay_of(uint i, bool redone, uint again, uint t) {
    return exp(a[i] * softplus((redone ? kept[again + p.v_heads + i] : alpha[t * decays_of() + i]) + dt_bias[i]));
}

// 1 / sqrt(sum of squares + 1e-6), in one fixed order; `me` has one value.
float inverse_norm(float x, uint me) {
    sums[me] = x;
    barrier();
    for (uint half_ = 128u; half_ > 0u; half_ >>= 1) {
        if (me < half_) { precise float s = sums[me] + sums[me + half_]; sums[me] = s; }
        barrier();
    }
    precise float total = sums[0] + 1e-6;
    barrier();
    return 1.0 / sqrt(total);
}

void main() {
    uint span = gl_WorkGroupID.y, h = gl_WorkGroupID.x / p.slices, slice = gl_WorkGroupID.x % p.slices, me = gl_LocalInvocationID.x;
    uint column = slice * 32u + (me & 31u), stripe = me >> 5, first = stripe * ROWS;
    uint start = block[p.spans + 4u * span], len = block[p.spans + 4u * span + 1u], slots = block[p.spans + 4u * span + 2u];
    uint slot = slots & 0xffffu, from = slots >> 16;  // the state's place, and that of the one to start with
    uint guessed = block[p.spans + 4u * span + 3u], guesses = guessed & 255u, again_from = (guessed >> 8) & 255u, redo = guessed >> 16;
    uint certain = redo + len - guesses;
    uint key_head = TILED == 1u ? h % p.k_heads : h / (p.v_heads / p.k_heads);
    bool inside = column < p.v_dim;
    uint head_at = h * p.k_dim * p.v_dim + column, size = p.v_heads * p.k_dim * p.v_dim;
    uint base = slot * size + head_at, base_from = from * size + head_at;
    float s[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        s[r] = inside && first + r < p.k_dim ? state[base_from + (first + r) * p.v_dim] : 0.0;
    }
    for (uint i = 0u; i < redo + len; i++) {
        uint t = start + i - redo;  // meaningless for what is redone
        uint again = kept_at(from, again_from + i) + p.channels;  // for that alone
        precise float q2 = 0.0;
        precise float k2 = 0.0;
        for (uint c = me; c < p.k_dim; c += 256u) {
            float qc = convolve(start, i, from, again_from, redo, key_head * p.k_dim + c);
            float kc = convolve(start, i, from, again_from, redo, (p.k_heads + key_head) * p.k_dim + c);
            query[c] = qc;
            key[c] = kc;
            q2 = q2 + qc * qc;
            k2 = k2 + kc * kc;
        }
        if (me < 32u && inside) { v[me] = convolve(start, i, from, again_from, redo, 2u * p.k_heads * p.k_dim + h * p.v_dim + column); }
        float qn = inverse_norm(q2, me), kn = inverse_norm(k2, me);
        for (uint c = me; c < p.k_dim; c += 256u) {
            precise float qc = (query[c] * qn) * p.scale;
            precise float kc = key[c] * kn;
            query[c] = qc;
            key[c] = kc;
            if ((KIND & 1u) == 1u) { decays[c] = decay_of(h * p.k_dim + c, i < redo, again, t); }
        }
        barrier();
        float beta = sigmoid(i < redo ? kept[again + h] : beta_in[t * p.v_heads + h]);
        float decay = (KIND & 1u) == 1u ? 0.0 : decay_of(h, i < redo, again, t);
        precise float read = 0.0;
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            precise float kept = s[r] * ((KIND & 1u) == 1u ? decays[first + r] : decay);
            s[r] = kept;
            if (first + r < p.k_dim) { read = read + kept * key[first + r]; }
        }
        partial[me] = read;
        barrier();
        precise float total = partial[me & 31u];
        for (uint g = 1u; g < 8u; g++) { total = total + partial[32u * g + (me & 31u)]; }
        precise float d = beta * (v[me & 31u] - total);
        barrier();
        precise float out_ = 0.0;
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            if (first + r < p.k_dim) {
                precise float next = s[r] + key[first + r] * d;
                s[r] = next;
                out_ = out_ + next * query[first + r];
            }
        }
        partial[me] = out_;
        barrier();
        if (me < 32u && inside && i >= redo) {
            precise float all = partial[me];
            for (uint g = 1u; g < 8u; g++) { all = all + partial[32u * g + me]; }
            o[(t * p.v_heads + h) * p.v_dim + column] = all;
        }
        barrier();
        if (i + 1u == certain) {  // guesses leave no trace
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                if (inside && first + r < p.k_dim) { state[base + (first + r) * p.v_dim] = s[r]; }
            }
        }
    }
    if (TAIL == 0u || !is_last(p.ticket + span * p.v_heads + h, p.slices)) { return; }
    for (uint t = start; t < start + len; t++) { gated_norm((t * p.v_heads + h) * p.v_dim, p.v_dim, p.eps, TAIL == 2u, (KIND & 2u) == 2u); }
}
