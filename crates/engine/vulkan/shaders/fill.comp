#version 450
// Copies experts from the host's memory to their slots in the device's (resolve.comp says which).
layout(local_size_x = 256) in;

layout(binding = 0, std430) readonly buffer HostQuants { uvec4 host_quants[]; };
layout(binding = 1, std430) readonly buffer HostHigh { uint host_high[]; };
layout(binding = 2, std430) readonly buffer HostScales { uint host_scales[]; };
layout(binding = 3, std430) writeonly buffer Quants { uvec4 quants[]; };
layout(binding = 4, std430) writeonly buffer High { uint high[]; };
layout(binding = 5, std430) writeonly buffer Scales { uint scales[]; };
layout(binding = 6, std430) readonly buffer Fills { uint fills[]; };

layout(push_constant) uniform Push { uint quants_each, high_each, scales_each; } p;  // of an expert: uvec4s, words, words

void main() {
    if (gl_WorkGroupID.y >= fills[0]) { return; }
    uint from = fills[1u + 2u * gl_WorkGroupID.y], to = fills[2u + 2u * gl_WorkGroupID.y];
    uint first = gl_WorkGroupID.x * 256u + gl_LocalInvocationID.x, step_ = gl_NumWorkGroups.x * 256u;
    for (uint i = first; i < p.quants_each; i += step_) { quants[to * p.quants_each + i] = host_quants[from * p.quants_each + i]; }
    for (uint i = first; i < p.high_each; i += step_) { high[to * p.high_each + i] = host_high[from * p.high_each + i]; }
    for (uint i = first; i < p.scales_each; i += step_) { scales[to * p.scales_each + i] = host_scales[from * p.scales_each + i]; }
}
