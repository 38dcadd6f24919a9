// Which experts a token goes to: softmax of the router's logits, the `top_k` largest (the lower index first on a tie), divided by
// their sum, in ascending order of the experts; and the shared expert's gate. Counts the choices. For workgroups of 64 and more. Who includes this defines
// LOGIT(i), and declares the buffers chosen, share, floats, shared_w, gate and counts, and the push constants.
const uint MAX_EXPERTS = 1024u, MAX_TOP_K = 32u;
shared uint key[MAX_EXPERTS];  // logits in an order that integers compare
shared float best[64];
shared float picked[MAX_TOP_K];
shared uint ids[MAX_TOP_K];

// An order that integers compare.
uint order_of(float x) {
    uint bits = floatBitsToUint(x + 0.0);
    return max(1u, (bits >> 31) == 1u ? ~bits : bits | 0x80000000u);
}

// Finds the largest of `key`, the lower one first of equal ones: `ids`, largest first. An expert's place is the number of those before it.
void pick_largest() {
    for (uint e = gl_LocalInvocationID.x; e < p.experts; e += gl_WorkGroupSize.x) {
        uint own = key[e], before = 0u;
        for (uint other = 0u; other < p.experts; other++) {
            before += key[other] > own || (key[other] == own && other < e) ? 1u : 0u;
        }
        if (before < p.top_k) { ids[before] = e; }
    }
    barrier();
}

// Writes the chosen experts and their weights `picked` in ascending order, and counts them. By one invocation.
void store_choice(uint t) {
    for (uint k = 0u; k < p.top_k; k++) {
        uint rank = 0u;
        for (uint j = 0u; j < p.top_k; j++) { rank += ids[j] < ids[k] ? 1u : 0u; }
        chosen[t * p.top_k + rank] = ids[k];
        share[t * p.top_k + rank] = picked[k];
        atomicAdd(counts[p.counts_at + ids[k]], 1u);
        counts[p.routes_at + t * (p.top_k + 1u) + k] = ids[k];
    }
}

// The weight of the shared expert: 1 without a gate.
void store_gate(uint t) {
    uint me = gl_LocalInvocationID.x;
    if (p.has_shared == 1u) {
        precise float sum = 0.0;
        if (me < 64u) {
            for (uint c = me; c < p.hidden; c += 64u) { sum = sum + floats[t * p.hidden + c] * shared_w[c]; }
            best[me] = sum;
        }
        barrier();
        for (uint half_ = 32u; half_ > 0u; half_ >>= 1) {
            if (me < half_) { precise float s = best[me] + best[me + half_]; best[me] = s; }
            barrier();
        }
    }
    if (me == 0u && p.has_shared != 0u) {
        gate[t] = p.has_shared == 1u ? sigmoid(best[0]) : 1.0;
        counts[p.routes_at + t * (p.top_k + 1u) + p.top_k] = floatBitsToUint(gate[t]);
    }
    barrier();
}

// The experts of token `t` are left in `ids`, largest first.
void route(uint t) {
    uint me = gl_LocalInvocationID.x;
    for (uint e = me; e < p.experts; e += gl_WorkGroupSize.x) { key[e] = order_of(LOGIT(t * p.experts + e)); }
    barrier();
    pick_largest();
    float max_ = LOGIT(t * p.experts + ids[0]);
    if (p.normalise == 0u && me < 64u) {  // the softmax over all experts
        precise float all = 0.0;
        for (uint e = me; e < p.experts; e += 64u) { all = all + exp(LOGIT(t * p.experts + e) - max_); }
        best[me] = all;
    }
    barrier();
    if (me == 0u) {
        precise float sum = 0.0;
        for (uint k = 0u; k < p.top_k; k++) {
            picked[k] = exp(LOGIT(t * p.experts + ids[k]) - max_);
            sum = sum + picked[k];
        }
        if (p.normalise == 0u) {
            sum = 0.0;
            for (uint i = 0u; i < 64u; i++) { sum = sum + best[i]; }
        }
        for (uint k = 0u; k < p.top_k; k++) { picked[k] = picked[k] / sum; }
        store_choice(t);
    }
    barrier();
    store_gate(t);
}
