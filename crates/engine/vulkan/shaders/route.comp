#version 450
// Which experts a token goes to: softmax of the router's logits, the `top_k` largest (the lower index first on a tie), divided by
// their sum, in ascending order of the experts; and the shared expert's gate. One workgroup a token. Counts the choices.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 64) in;

layout(binding = 0, std430) readonly buffer Logits { float logits[]; };
layout(binding = 1, std430) writeonly buffer Chosen { uint chosen[]; };    // [n, top_k]
layout(binding = 2, std430) writeonly buffer Share { float share[]; };     // [n, top_k]
layout(binding = 3, std430) readonly buffer X { float x[]; };              // normalised rows
layout(binding = 4, std430) readonly buffer SharedRouter { float w[]; };
layout(binding = 5, std430) writeonly buffer Gate { float gate[]; };       // [n]
layout(binding = 6, std430) buffer Counts { uint counts[]; };              // [layers, experts]
layout(binding = 7, std430) writeonly buffer Tiles { uint tiles[]; };     // of a single token: group.comp has nothing to do
layout(binding = 8, std430) writeonly buffer Pairs { uint pairs[]; };

layout(push_constant) uniform Push { uint experts, top_k, hidden, has_shared, counts_at, normalise, alone; } p;

const uint MAX_EXPERTS = 1024u, MAX_TOP_K = 32u;
shared uint key[MAX_EXPERTS];  // logits in an order that integers compare; 0: taken
shared float best[64];
shared uint best_key[64];
shared uint where_[64];
shared float picked[MAX_TOP_K];
shared uint ids[MAX_TOP_K];
shared float max_;

void main() {
    uint t = gl_WorkGroupID.x, me = gl_LocalInvocationID.x;
    for (uint e = me; e < p.experts; e += 64u) {
        uint bits = floatBitsToUint(logits[t * p.experts + e] + 0.0);
        key[e] = max(1u, (bits >> 31) == 1u ? ~bits : bits | 0x80000000u);
    }
    barrier();
    for (uint k = 0u; k < p.top_k; k++) {
        uint most = 0u, at = 0u;
        for (uint e = me; e < p.experts; e += 64u) {
            if (key[e] > most) { most = key[e]; at = e; }
        }
        best_key[me] = most;
        where_[me] = at;
        barrier();
        if (me == 0u) {
            for (uint i = 1u; i < 64u; i++) {
                if (best_key[i] > most || (best_key[i] == most && most > 0u && where_[i] < at)) { most = best_key[i]; at = where_[i]; }
            }
            ids[k] = at;
            picked[k] = logits[t * p.experts + at];
            if (k == 0u) { max_ = picked[0]; }
            key[at] = 0u;
        }
        barrier();
    }
    if (p.normalise == 0u) {  // the softmax over all experts
        precise float all = 0.0;
        for (uint e = me; e < p.experts; e += 64u) { all = all + exp(logits[t * p.experts + e] - max_); }
        best[me] = all;
        barrier();
    }
    if (me == 0u) {
        if (p.alone == 1u) { tiles[0] = p.top_k; }
        precise float sum = 0.0;
        for (uint k = 0u; k < p.top_k; k++) {
            picked[k] = exp(picked[k] - max_);
            sum = sum + picked[k];
        }
        if (p.normalise == 0u) {
            sum = 0.0;
            for (uint i = 0u; i < 64u; i++) { sum = sum + best[i]; }
        }
        for (uint k = 0u; k < p.top_k; k++) {
            uint rank = 0u;
            for (uint j = 0u; j < p.top_k; j++) { rank += ids[j] < ids[k] ? 1u : 0u; }
            chosen[t * p.top_k + rank] = ids[k];
            share[t * p.top_k + rank] = picked[k] / sum;
            if (p.alone == 1u) {
                tiles[1u + 3u * rank] = ids[k];
                tiles[2u + 3u * rank] = rank;
                tiles[3u + 3u * rank] = 1u;
                pairs[rank] = rank;
            }
            atomicAdd(counts[p.counts_at + ids[k]], 1u);
        }
    }
    if (p.has_shared == 1u) {
        barrier();
        precise float sum = 0.0;
        for (uint c = me; c < p.hidden; c += 64u) { sum = sum + x[t * p.hidden + c] * w[c]; }
        best[me] = sum;
        barrier();
        for (uint half_ = 32u; half_ > 0u; half_ >>= 1) {
            if (me < half_) { precise float s = best[me] + best[me + half_]; best[me] = s; }
            barrier();
        }
        if (me == 0u) { gate[t] = sigmoid(best[0]); }
    }
}
