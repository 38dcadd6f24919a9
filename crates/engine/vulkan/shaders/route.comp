#version 450
// Which experts each token goes to: by a softmax (route.glsl), or by scores that choose and weigh differently. One workgroup a token. Then group.comp.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint SCORE = 0u;  // 0: route.glsl; 1: softmax over all experts; 2: sigmoid of each; 3: SparseMixer
layout(constant_id = 1) const uint FACTORS = 0u;  // bit 0: biases of the choice, bit 1: a factor of each expert

layout(binding = 0, std430) readonly buffer Logits { float logits[]; };
layout(binding = 1, std430) writeonly buffer Chosen { uint chosen[]; };    // [n, top_k]
layout(binding = 2, std430) writeonly buffer Share { float share[]; };     // [n, top_k]
layout(binding = 3, std430) readonly buffer Floats { float floats[]; };    // normalised rows
layout(binding = 4, std430) readonly buffer SharedRouter { float shared_w[]; };
layout(binding = 5, std430) buffer Gate { float gate[]; };       // [n]
layout(binding = 6, std430) buffer Counts { uint counts[]; };              // [layers, experts]; then the routes: [layers, tokens, top_k + 1]
layout(binding = 7, std430) readonly buffer Bias { float bias[]; };        // [experts]
layout(binding = 8, std430) readonly buffer PerExpert { float per_expert[]; };  // [experts]

layout(push_constant) uniform Push {
    uint experts, top_k, hidden, has_shared, counts_at, normalise, routes_at;
    float scale;          // of the weights
    uint groups, kept;    // experts are chosen from the `kept` best of `groups` groups; 0: from all
} p;

#define LOGIT(i) logits[i]
#include "route.glsl"

const uint MAX_GROUPS = 64u;
shared float score[MAX_EXPERTS];
shared float group_sum[MAX_GROUPS];

float choice(uint e) {
    precise float c = score[e] + ((FACTORS & 1u) != 0u ? bias[e] : 0.0);
    return c;
}

void scores(uint t) {
    uint me = gl_LocalInvocationID.x;
    if (SCORE == 2u) {
        for (uint e = me; e < p.experts; e += 64u) { score[e] = sigmoid(LOGIT(t * p.experts + e)); }
        barrier();
        return;
    }
    float most = -3.4028234e38;
    for (uint e = me; e < p.experts; e += 64u) { most = max(most, LOGIT(t * p.experts + e)); }
    best[me] = most;
    barrier();
    for (uint half_ = 32u; half_ > 0u; half_ >>= 1) {
        if (me < half_) { best[me] = max(best[me], best[me + half_]); }
        barrier();
    }
    most = best[0];
    barrier();
    precise float all = 0.0;
    for (uint e = me; e < p.experts; e += 64u) {
        score[e] = exp(LOGIT(t * p.experts + e) - most);
        all = all + score[e];
    }
    best[me] = all;
    barrier();
    precise float sum = 0.0;
    for (uint i = 0u; i < 64u; i++) { sum = sum + best[i]; }
    for (uint e = me; e < p.experts; e += 64u) { score[e] = score[e] / sum; }
    barrier();
}

// Excludes all but the groups with the largest sums of their two best experts, the lower one first on a tie.
void exclude_groups() {
    uint me = gl_LocalInvocationID.x, size = p.experts / p.groups;
    if (me < p.groups) {
        float first = -3.4028234e38, second = first;
        for (uint e = me * size; e < (me + 1u) * size; e++) {
            float c = choice(e);
            if (c > first) { second = first; first = c; } else if (c > second) { second = c; }
        }
        precise float sum = size > 1u ? first + second : first;
        group_sum[me] = sum;
    }
    barrier();
    for (uint e = me; e < p.experts; e += 64u) {
        uint own = e / size, rank = 0u;
        for (uint g = 0u; g < p.groups; g++) {
            rank += group_sum[g] > group_sum[own] || (group_sum[g] == group_sum[own] && g < own) ? 1u : 0u;
        }
        if (rank >= p.kept) { key[e] = 1u; }
    }
    barrier();
}

void route_by_scores(uint t) {
    uint me = gl_LocalInvocationID.x;
    scores(t);
    for (uint e = me; e < p.experts; e += 64u) { key[e] = order_of(choice(e)); }
    barrier();
    if (p.groups != 0u) { exclude_groups(); }
    pick_largest();
    if (me == 0u) {
        precise float sum = 0.0;
        for (uint k = 0u; k < p.top_k; k++) {
            picked[k] = score[ids[k]];
            sum = sum + picked[k];
        }
        for (uint k = 0u; k < p.top_k; k++) {
            precise float weight = p.normalise == 1u ? picked[k] / sum : picked[k];
            weight = weight * p.scale;
            if ((FACTORS & 2u) != 0u) { weight = weight * per_expert[ids[k]]; }
            picked[k] = weight;
        }
        store_choice(t);
    }
    barrier();
    store_gate(t);
}

// Logits that share a weight of SparseMixer.
const float REACH = 0.02;

// The largest logits. A weight is a softmax over those near to its logit, without the ones that were chosen before.
void route_sparsely(uint t) {
    uint me = gl_LocalInvocationID.x, from = t * p.experts;
    for (uint e = me; e < p.experts; e += 64u) { key[e] = order_of(LOGIT(from + e)); }
    barrier();
    pick_largest();
    if (me == 0u) {
        for (uint k = 0u; k < p.top_k; k++) {
            float most = LOGIT(from + ids[k]);
            precise float sum = 0.0;
            for (uint e = 0u; e < p.experts; e++) {
                float other = LOGIT(from + e);
                bool is_near = !((most - other) / max(abs(other), most) > REACH);
                for (uint j = 0u; j < k; j++) { is_near = is_near && ids[j] != e; }
                if (is_near) { sum = sum + exp(other - most); }
            }
            precise float weight = p.scale / sum;
            if ((FACTORS & 2u) != 0u) { weight = weight * per_expert[ids[k]]; }
            picked[k] = weight;
        }
        store_choice(t);
    }
    barrier();
    store_gate(t);
}

void main() {
    uint t = gl_WorkGroupID.x;
    if (SCORE == 0u) { route(t); } else if (SCORE == 3u) { route_sparsely(t); } else { route_by_scores(t); }
}
