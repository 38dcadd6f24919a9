#version 450
// Advances the states of the convolution: the last `kernel - 1` inputs of each span. A thread has one channel, and goes from the oldest row to the newest, so
// that it reads each row before it writes it. Runs after gdn.comp.
layout(local_size_x = 64) in;

layout(binding = 0, std430) readonly buffer Qkv { float qkv[]; };
layout(binding = 1, std430) buffer Conv { float conv[]; };
layout(binding = 2, std430) readonly buffer Block { uint block[]; };

layout(push_constant) uniform Push { uint channels, rows, spans; } p;

void main() {
    uint c = gl_WorkGroupID.x * 64u + gl_LocalInvocationID.x, span = gl_WorkGroupID.y;
    if (c >= p.channels) { return; }
    uint start = block[p.spans + 3u * span], len = block[p.spans + 3u * span + 1u], slot = block[p.spans + 3u * span + 2u];
    for (uint r = 0u; r < p.rows; r++) {
        uint at = r + len;
        float x = at < p.rows ? conv[(slot * p.rows + at) * p.channels + c] : qkv[(start + at - p.rows) * p.channels + c];
        conv[(slot * p.rows + r) * p.channels + c] = x;
    }
}
