#version 450
// Groups (token, expert) pairs by expert, and cuts each group into tiles of up to `tile` pairs. One workgroup.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 256) in;

layout(binding = 0, std430) readonly buffer Chosen { uint chosen[]; };
layout(binding = 1, std430) writeonly buffer Tiles { uint tiles[]; };   // count; then (expert, first pair, pairs) each
layout(binding = 2, std430) writeonly buffer Pairs { uint pairs[]; };

layout(push_constant) uniform Push { uint experts, pairs, tile; } p;

shared uint count[1024];
shared uint first[1024];
shared uint first_tile[1024];

void main() {
    uint me = gl_LocalInvocationID.x;
    for (uint e = me; e < p.experts; e += 256u) { count[e] = 0u; }
    barrier();
    for (uint i = me; i < p.pairs; i += 256u) { atomicAdd(count[chosen[i]], 1u); }
    barrier();
    if (me == 0u) {
        uint at = 0u, tile = 0u;
        for (uint e = 0u; e < p.experts; e++) {
            first[e] = at;
            first_tile[e] = tile;
            at += count[e];
            tile += (count[e] + p.tile - 1u) / p.tile;
        }
        tiles[0] = tile;
    }
    barrier();
    for (uint e = me; e < p.experts; e += 256u) {
        for (uint i = 0u; i * p.tile < count[e]; i++) {
            uint at = 1u + 3u * (first_tile[e] + i);
            tiles[at] = e;
            tiles[at + 1u] = first[e] + i * p.tile;
            tiles[at + 2u] = min(p.tile, count[e] - i * p.tile);
        }
    }
    barrier();
    for (uint i = me; i < p.pairs; i += 256u) { pairs[atomicAdd(first[chosen[i]], 1u)] = i; }
}
