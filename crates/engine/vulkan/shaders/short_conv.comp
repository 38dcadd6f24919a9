#version 450
// A gated short convolution: `out = c * conv(b * x)` of rows [b | c | x]. A thread has one channel of a span, token after token. The states are advanced by
// conv_state.comp, which runs after this.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 64) in;

layout(binding = 0, std430) readonly buffer Bcx { float bcx[]; };
layout(binding = 1, std430) readonly buffer Conv { float conv[]; };
layout(binding = 2, std430) readonly buffer Block { uint block[]; };
layout(binding = 3, std430) readonly buffer Kept { float kept[]; };  // products b x of each slot's guesses
layout(binding = 4, std430) readonly buffer Taps { float taps[]; };
layout(binding = 5, std430) writeonly buffer Out { float y[]; };

layout(push_constant) uniform Push { uint channels, rows, spans, kept_rows; } p;

void main() {
    uint c = gl_WorkGroupID.x * 64u + gl_LocalInvocationID.x, span = gl_WorkGroupID.y;
    if (c >= p.channels) { return; }
    uint start = block[p.spans + 4u * span], len = block[p.spans + 4u * span + 1u], from = block[p.spans + 4u * span + 2u] >> 16;
    uint guessed = block[p.spans + 4u * span + 3u], first = (guessed >> 8) & 255u, redo = guessed >> 16;
    for (uint i = 0u; i < len; i++) {
        precise float sum = 0.0;
        for (uint j = 0u; j <= p.rows; j++) {
            uint at = redo + i + j;  // in the window of carried rows, those to redo, then the span's tokens
            precise float x;
            if (at < p.rows) { x = conv[(from * p.rows + at) * p.channels + c]; }
            else if (at - p.rows < redo) { x = kept[(from * p.kept_rows + first + at - p.rows) * p.channels + c]; }
            else {
                uint t = 3u * (start + at - p.rows - redo);
                x = bcx[t * p.channels + c] * bcx[(t + 2u) * p.channels + c];
            }
            sum = sum + taps[j * p.channels + c] * x;
        }
        precise float gated = bcx[(3u * (start + i) + 1u) * p.channels + c] * sum;
        y[(start + i) * p.channels + c] = gated;
    }
}
