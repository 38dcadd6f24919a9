#version 450
// Advances the states of the convolution: the last `kernel - 1` inputs before each span's guesses. Keeps the inputs of the guesses. A thread has one channel (or
// beta or decay of one head), and goes from the oldest row to the newest, so that it reads each row before it writes it. A span may start with the rows of another slot. Runs after gdn.comp.
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint PRODUCT = 0u;

layout(binding = 0, std430) readonly buffer Qkv { float qkv[]; };
layout(binding = 1, std430) buffer Conv { float conv[]; };
layout(binding = 2, std430) readonly buffer Block { uint block[]; };

layout(binding = 3, std430) readonly buffer Beta { float beta[]; };
layout(binding = 4, std430) readonly buffer Alpha { float alpha[]; };
layout(binding = 5, std430) buffer Kept { float kept[]; };

layout(push_constant) uniform Push {
    uint channels, rows, spans;
    uint beta, alpha;  // widths of these inputs
    uint kept_rows;
} p;

// Input of the convolution: a value of the rows, or of a short convolution [b | c | x] the product b x.
float input_at(uint t, uint c) {
    if (PRODUCT == 0u) { return qkv[t * p.channels + c]; }
    precise float bx = qkv[3u * t * p.channels + c] * qkv[(3u * t + 2u) * p.channels + c];
    return bx;
}

void main() {
    uint c = gl_WorkGroupID.x * 64u + gl_LocalInvocationID.x, span = gl_WorkGroupID.y;
    uint width = p.channels + p.beta + p.alpha;
    if (c >= width) { return; }
    uint start = block[p.spans + 4u * span], len = block[p.spans + 4u * span + 1u], slots = block[p.spans + 4u * span + 2u];
    uint slot = slots & 0xffffu, from = slots >> 16;
    uint guessed = block[p.spans + 4u * span + 3u], guesses = guessed & 255u, first = (guessed >> 8) & 255u, redo = guessed >> 16;
    uint certain = len - guesses;
    if (c < p.channels) {
        for (uint r = 0u; r < p.rows; r++) {
            uint at = r + redo + certain;  // in the window of carried rows, those to redo, then the span's tokens
            float x;
            if (at < p.rows) { x = conv[(from * p.rows + at) * p.channels + c]; }
            else if (at - p.rows < redo) { x = kept[(from * p.kept_rows + first + at - p.rows) * width + c]; }
            else { x = input_at(start + at - p.rows - redo, c); }
            conv[(slot * p.rows + r) * p.channels + c] = x;
        }
    }
    for (uint g = 0u; g < guesses; g++) {
        uint t = start + certain + g, head = c - p.channels;
        float x;
        if (c < p.channels) { x = input_at(t, c); }
        else if (head < p.beta) { x = beta[t * p.beta + head]; }
        else { x = alpha[t * p.alpha + head - p.beta]; }
        kept[(slot * p.kept_rows + g) * width + c] = x;
    }
}
