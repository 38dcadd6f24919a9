#version 450
// Reads 64 words a thread and writes one a workgroup: what the device's memory gives at best.
layout(local_size_x = 256) in;

layout(binding = 0, std430) readonly buffer From { uvec4 from[]; };
layout(binding = 1, std430) writeonly buffer Sink { uint sink[]; };

void main() {
    uint me = gl_LocalInvocationID.x, base = gl_WorkGroupID.x * 4096u;
    uvec4 all = uvec4(0u);
    for (uint i = 0u; i < 16u; i++) { all |= from[base + i * 256u + me]; }
    // never true, and the compiler does not know
    if ((all.x | all.y | all.z | all.w) != 0u) { sink[gl_WorkGroupID.x] = 1u; }
}
