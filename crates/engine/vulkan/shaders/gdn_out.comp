#version 450
// The gated norm after Gated DeltaNet (gated_norm.glsl), of many tokens. One workgroup a head.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint QUANT = 0u;  // heads are whole blocks of 32, and are quantised too
layout(constant_id = 1) const uint SIGMOID = 0u;

layout(binding = 0, std430) buffer O { float o[]; };
layout(binding = 1, std430) readonly buffer Z { float z[]; };
layout(binding = 2, std430) readonly buffer W { float w[]; };
layout(binding = 3, std430) writeonly buffer Q { uint q[]; };
layout(binding = 4, std430) writeonly buffer D { vec2 d[]; };
#include "gated_norm.glsl"

layout(push_constant) uniform Push { uint heads, dim; float eps; } p;

void main() { gated_norm((gl_WorkGroupID.y * p.heads + gl_WorkGroupID.x) * p.dim, p.dim, p.eps, QUANT == 1u, SIGMOID == 1u); }
