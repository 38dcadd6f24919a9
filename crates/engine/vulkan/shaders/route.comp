#version 450
// Which experts each of many tokens goes to (route.glsl). One workgroup a token. Then group.comp.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 64) in;

layout(binding = 0, std430) readonly buffer Logits { float logits[]; };
layout(binding = 1, std430) writeonly buffer Chosen { uint chosen[]; };    // [n, top_k]
layout(binding = 2, std430) writeonly buffer Share { float share[]; };     // [n, top_k]
layout(binding = 3, std430) readonly buffer Floats { float floats[]; };    // normalised rows
layout(binding = 4, std430) readonly buffer SharedRouter { float shared_w[]; };
layout(binding = 5, std430) buffer Gate { float gate[]; };       // [n]
layout(binding = 6, std430) buffer Counts { uint counts[]; };              // [layers, experts]; then the routes: [layers, tokens, top_k + 1]

layout(push_constant) uniform Push { uint experts, top_k, hidden, has_shared, counts_at, normalise, routes_at; } p;

#define LOGIT(i) logits[i]
#include "route.glsl"

void main() { route(gl_WorkGroupID.x); }
