// Which experts a token goes to: softmax of the router's logits, the `top_k` largest (the lower index first on a tie), divided by
// their sum, in ascending order of the experts; and the shared expert's gate. Counts the choices. For workgroups of 64. Who includes this defines
// LOGIT(i), and declares the buffers chosen, share, floats, shared_w, gate and counts, and the push constants.
const uint MAX_EXPERTS = 1024u, MAX_TOP_K = 32u;
shared uint key[MAX_EXPERTS];  // logits in an order that integers compare; 0: taken
shared float best[64];
shared uint best_key[64];
shared uint where_[64];
shared float picked[MAX_TOP_K];
shared uint ids[MAX_TOP_K];

// The experts of token `t` are left in `ids`, largest first.
void route(uint t) {
    uint me = gl_LocalInvocationID.x;
    for (uint e = me; e < p.experts; e += 64u) {
        uint bits = floatBitsToUint(LOGIT(t * p.experts + e) + 0.0);
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
        for (uint half_ = 32u; half_ > 0u; half_ >>= 1) {
            if (me < half_) {
                uint other = best_key[me + half_], there = where_[me + half_];
                if (other > best_key[me] || (other == best_key[me] && there < where_[me])) { best_key[me] = other; where_[me] = there; }
            }
            barrier();
        }
        if (me == 0u) {
            at = where_[0];
            ids[k] = at;
            picked[k] = LOGIT(t * p.experts + at);
            key[at] = 0u;
        }
        barrier();
    }
    float max_ = picked[0];
    if (p.normalise == 0u) {  // the softmax over all experts
        precise float all = 0.0;
        for (uint e = me; e < p.experts; e += 64u) { all = all + exp(LOGIT(t * p.experts + e) - max_); }
        best[me] = all;
    }
    barrier();
    if (me == 0u) {
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
            atomicAdd(counts[p.counts_at + ids[k]], 1u);
            counts[p.routes_at + t * (p.top_k + 1u) + k] = ids[k];
        }
    }
    barrier();
    if (p.has_shared == 1u) {
        precise float sum = 0.0;
        for (uint c = me; c < p.hidden; c += 64u) { sum = sum + floats[t * p.hidden + c] * shared_w[c]; }
        best[me] = sum;
        barrier();
        for (uint half_ = 32u; half_ > 0u; half_ >>= 1) {
            if (me < half_) { precise float s = best[me] + best[me + half_]; best[me] = s; }
            barrier();
        }
        if (me == 0u) {
            gate[t] = sigmoid(best[0]);
            counts[p.routes_at + t * (p.top_k + 1u) + p.top_k] = floatBitsToUint(gate[t]);
        }
        barrier();
    }
}
