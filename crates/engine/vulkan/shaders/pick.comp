#version 450
// The largest logits of each row, of those that may be sampled, the lower id first on a tie: what the choice of a token needs of them. A workgroup finds the 64
// largest of 4096 logits; the last one of a row finds the 64 largest of what these found. Among equal ones the order of the ids decides, whoever comes first.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 256) in;

const uint PICKS = 64u, EACH = 16u, CHUNK = 256u * EACH;
const uint STRIDE = PICKS + 1u;  // of a workgroup in `found`: (key, id) each, at last `bad`

layout(binding = 0, std430) readonly buffer Logits { float logits[]; };       // [rows, vocab]
layout(binding = 1, std430) readonly buffer Sampleable { uint sampleable[]; };  // a bit for each id
layout(binding = 2, std430) coherent buffer Found { uvec2 found[]; };         // [rows, workgroups, STRIDE]
// Of each row: number, whether a logit is no number, (id, logit) each by id. If one is no number, the first pair is that one, the lowest id of several.
layout(binding = 3, std430) writeonly buffer Picks { uint picks[]; };
layout(binding = 4, std430) coherent buffer Tickets { uint tickets[]; };

layout(push_constant) uniform Push { uint vocab; } p;

#include "tail.glsl"

// Keys in an order that integers compare, 0 for what is not to be chosen. Invocation `i` has 16 in a row; one word of 17 is left free, for the banks' sake.
shared uint keys[CHUNK + CHUNK / EACH];
shared uint bins[256];
shared uint sums[16];
shared uint state[3];  // bits of the threshold so far, how many more are wanted, a bin's place
shared uint bad;  // the inverse of the lowest id whose logit cannot be chosen from; 0 without one

uint place(uint i) { return i + i / EACH; }

// The sum of `n` over the invocations before this one; called by all.
uint before(uint n) {
    uint me = gl_LocalInvocationID.x;
    bins[me] = n;
    barrier();
    if (me < 16u) {
        uint sum = 0u;
        for (uint i = 0u; i < 16u; i++) { sum += bins[16u * me + i]; }
        sums[me] = sum;
    }
    barrier();
    uint sum = 0u;
    for (uint i = 0u; i < me >> 4; i++) { sum += sums[i]; }
    for (uint i = me & ~15u; i < me; i++) { sum += bins[i]; }
    barrier();
    return sum;
}

// Of the keys: the 64th largest, in state[0], and how many that are equal to it belong to the 64, in state[1]. Radix selection, a byte at a time.
void find_threshold() {
    uint me = gl_LocalInvocationID.x;
    if (me == 0u) { state[0] = 0u; state[1] = PICKS; }
    for (uint shift = 32u; shift > 0u;) {
        shift -= 8u;
        bins[me] = 0u;
        barrier();
        uint known = state[0], mask = shift == 24u ? 0u : 0xffffffffu << (shift + 8u);
        // neighbours mostly share a bin
        uint bin = 0u, run = 0u;
        for (uint i = 0u; i < EACH; i++) {
            uint key = keys[place(EACH * me + i)], own = (key >> shift) & 255u;
            if ((key & mask) != known) { continue; }
            if (own != bin && run > 0u) { atomicAdd(bins[bin], run); run = 0u; }
            bin = own;
            run++;
        }
        if (run > 0u) { atomicAdd(bins[bin], run); }
        barrier();
        if (me < 16u) {
            uint sum = 0u;
            for (uint i = 0u; i < 16u; i++) { sum += bins[16u * me + i]; }
            sums[me] = sum;
        }
        barrier();
        if (me == 0u) {
            uint wanted = state[1], at = 15u;
            while (at > 0u && sums[at] < wanted) { wanted -= sums[at]; at--; }
            uint b = 16u * at + 15u;
            while (b > 16u * at && bins[b] < wanted) { wanted -= bins[b]; b--; }
            state[0] = known | (b << shift);
            state[1] = wanted;
        }
        barrier();
    }
}

void main() {
    uint me = gl_LocalInvocationID.x, groups = gl_NumWorkGroups.x, group = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    uint base = (row * groups + group) * STRIDE;
    if (me == 0u) { bad = 0u; }
    barrier();
    for (uint i = me; i < CHUNK; i += 256u) {
        uint id = group * CHUNK + i, key = 0u;
        if (id < p.vocab && ((sampleable[id >> 5] >> (id & 31u)) & 1u) == 1u) {
            uint bits = floatBitsToUint(logits[row * p.vocab + id]);
            bool is_infinite = (bits & 0x7fffffffu) == 0x7f800000u;
            if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) { atomicMax(bad, ~id); }
            bits = bits == 0x80000000u ? 0u : bits;  // -0 is 0
            key = is_infinite ? 0u : (bits >> 31) == 1u ? ~bits : bits | 0x80000000u;
        }
        keys[place(i)] = key;
    }
    barrier();
    // first this workgroup's share, then, in the last one of the row, what all found
    for (uint round = 0u; round < 2u; round++) {
        find_threshold();
        uint least = state[0], ties = state[1], more = 0u, equal = 0u;
        for (uint i = 0u; i < EACH; i++) {
            uint key = keys[place(EACH * me + i)];
            more += key > least ? 1u : 0u;
            equal += key == least && key != 0u ? 1u : 0u;
        }
        uint taken = before(equal);
        uint left = ties > taken ? min(ties - taken, equal) : 0u, at = before(more + left);
        uint to = round == 0u ? base : (2u + 2u * PICKS) * row;
        for (uint i = 0u; i < EACH; i++) {
            uint index = EACH * me + i, key = keys[place(index)];
            bool is_tie = key == least && key != 0u && left > 0u;
            if (key <= least && !is_tie) { continue; }
            left -= is_tie ? 1u : 0u;
            if (round == 0u) {
                found[to + at] = uvec2(key, group * CHUNK + index);
            } else {
                uint id = found[(row * groups + index / PICKS) * STRIDE + index % PICKS].y;
                if (at > 0u || bad == 0u) {
                    picks[to + 2u + 2u * at] = id;
                    picks[to + 3u + 2u * at] = floatBitsToUint(logits[row * p.vocab + id]);
                }
            }
            at++;
        }
        uint all = 0u;  // of the last invocation: how many there are
        if (me == 255u) { state[2] = at; }
        barrier();
        all = state[2];
        if (round == 1u) {
            if (me == 0u) { picks[to] = all; picks[to + 1u] = bad == 0u ? 0u : 1u; }
            if (me == 0u && bad != 0u) {
                picks[to + 2u] = ~bad;
                picks[to + 3u] = floatBitsToUint(logits[row * p.vocab + ~bad]);
            }
            return;
        }
        for (uint i = all + me; i < PICKS; i += 256u) { found[to + i] = uvec2(0u); }
        if (me == 0u) { found[to + PICKS] = uvec2(bad, 0u); }
        if (!is_last(row, groups)) { return; }
        for (uint i = me; i < CHUNK; i += 256u) {
            uint g = i / PICKS;
            keys[place(i)] = g < groups ? found[(row * groups + g) * STRIDE + i % PICKS].x : 0u;
            if (g < groups && i % PICKS == 0u) { atomicMax(bad, found[(row * groups + g) * STRIDE + PICKS].x); }
        }
        barrier();
    }
}
