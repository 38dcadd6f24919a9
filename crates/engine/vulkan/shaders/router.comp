#version 450
// The router of a few tokens: its projection (linear.comp), and what the last workgroup does: each token's experts (route.glsl), and their pairs by
// expert, in the form in which group.comp has them. A tile has room for all tokens, so an expert has one.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define RESIDENT
#include "weights.glsl"
#define COHERENT coherent
layout(local_size_x_id = 3) in;  // 64, or 256 where stripes are split

layout(binding = 7, std430) writeonly buffer Chosen { uint chosen[]; };    // [n, top_k]
layout(binding = 8, std430) writeonly buffer Share { float share[]; };     // [n, top_k]
layout(binding = 9, std430) readonly buffer Floats { float floats[]; };    // normalised rows
layout(binding = 10, std430) readonly buffer SharedRouter { float shared_w[]; };
layout(binding = 11, std430) buffer Gate { float gate[]; };      // [n]
layout(binding = 12, std430) buffer Counts { uint counts[]; };             // [layers, experts]; then the routes: [layers, tokens, top_k + 1]
layout(binding = 13, std430) writeonly buffer Tiles { uint tiles[]; };
layout(binding = 14, std430) writeonly buffer Pairs { uint pairs[]; };
layout(binding = 15, std430) coherent buffer Tickets { uint tickets[]; };

layout(push_constant) uniform Push {
    uint rows, cols, n, x_stride, y_stride, has_bias; float add;
    uint experts, top_k, hidden, has_shared, counts_at, normalise, routes_at;
    uint ticket;
} p;

#define ROWS 1u  // few rows of f32: one a workgroup, or too few reads would be under way
#include "linear.glsl"
#define LOGIT(i) y[i]
#include "route.glsl"
#include "tail.glsl"

shared uint expert_of[MAX_TOP_K * TOKENS];  // of each pair
shared uint first_of[MAX_TOP_K * TOKENS];   // 1: the first pair of its expert

void main() {
    project();
    if (!is_last(p.ticket, gl_NumWorkGroups.x)) { return; }
    uint me = gl_LocalInvocationID.x, all = p.n * p.top_k;
    for (uint t = 0u; t < p.n; t++) {
        route(t);
        for (uint k = me; k < p.top_k; k += gl_WorkGroupSize.x) {
            uint rank = 0u;
            for (uint j = 0u; j < p.top_k; j++) { rank += ids[j] < ids[k] ? 1u : 0u; }
            expert_of[t * p.top_k + rank] = ids[k];
        }
        barrier();
    }
    for (uint i = me; i < all; i += gl_WorkGroupSize.x) {
        uint is_first = 1u;
        for (uint j = 0u; j < i; j++) { is_first = expert_of[j] == expert_of[i] ? 0u : is_first; }
        first_of[i] = is_first;
    }
    barrier();
    for (uint i = me; i < all; i += gl_WorkGroupSize.x) {
        uint own = expert_of[i], at = 0u, count = 0u, tile = 0u, total = 0u;
        for (uint j = 0u; j < all; j++) {
            uint other = expert_of[j];
            total += first_of[j];
            tile += other < own ? first_of[j] : 0u;
            count += other == own ? 1u : 0u;
            at += other < own || (other == own && j < i) ? 1u : 0u;
        }
        pairs[at] = i;
        if (first_of[i] == 1u) {
            tiles[1u + 3u * tile] = own;
            tiles[2u + 3u * tile] = at;
            tiles[3u + 3u * tile] = count;
        }
        if (i == 0u) { tiles[0] = total; }
    }
}
