// The body of a projection: linear.comp, and with a tail linear_norm.comp and router.comp (RESIDENT: neither experts nor the host's memory). Who includes
// this declares the push constants.
layout(constant_id = 1) const uint TOKENS = 1u;

layout(binding = 3, std430) readonly buffer X { uvec4 x[]; };       // int8 activations, or f32 for float types
layout(binding = 4, std430) readonly buffer Dx { vec2 dx[]; };      // scale and sum of each block of 32
layout(binding = 5, std430) readonly buffer Bias { float bias[]; };
layout(binding = 6, std430) COHERENT buffer Y { float y[]; };
#ifndef RESIDENT
layout(binding = 7, std430) readonly buffer Tiles { uint tiles[]; };  // count; then (expert, first pair, pairs) each
layout(binding = 8, std430) readonly buffer Pairs { uint pairs[]; };
layout(binding = 12, std430) readonly buffer Slots { uint slots[]; };  // slot of each expert, from slots_at on
#endif

shared float partial[64 * TOKENS];

// The row of x, and the row of y, of the `id`-th token.
#ifdef PER_HEAD
uint source_of(uint id) { return id * gl_NumWorkGroups.z + gl_WorkGroupID.z; }
uint target_of(uint id) { return id * gl_NumWorkGroups.z + gl_WorkGroupID.z; }
#elif defined(RESIDENT)
uint source_of(uint id) { return id; }
uint target_of(uint id) { return id; }
#else
uint source_of(uint id) { return EXPERTS != 0u ? pairs[id] / p.divide : id; }
uint target_of(uint id) { return EXPERTS != 0u ? pairs[id] : id; }
#endif
void project() {
    uint lane = gl_LocalInvocationID.x & 7u, slot = gl_LocalInvocationID.x >> 3;
    uint row = gl_WorkGroupID.x * 8u + slot, first = gl_WorkGroupID.y * TOKENS, count = min(TOKENS, p.n - min(p.n, first));
    uint expert = 0u, matrix = 0u;  // the matrix where it lies, and its number
#ifdef PER_HEAD
    expert = gl_WorkGroupID.z;
#endif
#ifndef RESIDENT
    if (EXPERTS != 0u) {
        if (gl_WorkGroupID.y >= tiles[0]) { return; }
        expert = tiles[1u + 3u * gl_WorkGroupID.y];
        first = tiles[2u + 3u * gl_WorkGroupID.y];
        count = tiles[3u + 3u * gl_WorkGroupID.y];
        matrix = expert;
        if (EXPERTS == 2u) {
            uint slot = slots[p.slots_at + expert];
            in_host = slot == 0xffffffffu;
            expert = in_host ? expert : slot;
        }
    }
#endif
    float acc[TOKENS];
    uint source[TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
        acc[t] = 0.0;
        source[t] = source_of(min(t, count - 1u) + first);
    }
    uint w_row = expert * p.rows + min(row, p.rows - 1u);
    if (TYPE <= BF16) {
        for (uint c = lane; c < p.cols; c += 8u) {
            float w = float_weight(w_row, c, p.cols);
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                uint at = source[t] * p.x_stride + c;
                precise float term = w * uintBitsToFloat(x[at >> 2][at & 3u]);
                precise float next = acc[t] + term;
                acc[t] = next;
            }
        }
    } else if (NARROW) {
        // words of neighbouring columns, which have one scale
        uint bits = narrow_bits(), each = 32u / bits, words = (p.cols + each - 1u) / each;
        uint group = narrow_group(p.cols), groups = (p.cols + group - 1u) / group;
        for (uint i = lane; i < words; i += 8u) {
            uint word = high_at(w_row * words + i), c = i * each, end = min(c + each, p.cols);
            float scale = uintBitsToFloat(scale_at(w_row * groups + c / group));
            for (; c < end; c++) {
                precise float w = narrow_value(word & ((1u << bits) - 1u)) * scale;
                word >>= bits;
                [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                    uint at = source[t] * p.x_stride + c;
                    precise float term = w * uintBitsToFloat(x[at >> 2][at & 3u]);
                    precise float next = acc[t] + term;
                    acc[t] = next;
                }
            }
        }
    } else {
        uint blocks = p.cols >> 5, steps = (blocks + 7u) >> 3;
        for (uint step = 0u; step < steps; step++) {
            uint block = lane * steps + step;
            if (block >= blocks) { break; }
            Block b = load_block((w_row * steps + step) * 8u + lane, w_row, block, blocks);
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                uint at = source[t] * (p.x_stride >> 5) + block;
                vec2 d = dx[at];
                precise float next = acc[t] + block_term(b, x[2u * at], x[2u * at + 1u], d.x, d.y);
                acc[t] = next;
            }
        }
    }
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) { partial[t * 64u + gl_LocalInvocationID.x] = acc[t]; }
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < 8u * count; i += 64u) {
        uint t = i >> 3, r = gl_WorkGroupID.x * 8u + (i & 7u);
        if (r >= p.rows) { continue; }
        precise float sum = partial[t * 64u + (i & 7u) * 8u];
        for (uint l = 1u; l < 8u; l++) { sum = sum + partial[t * 64u + (i & 7u) * 8u + l]; }
        if (p.has_bias == 1u) { sum = sum + bias[matrix * p.rows + r]; }
        uint to = target_of(first + t) * p.y_stride + r;
        if (p.add != 0.0) {
            precise float term = p.add * sum;
            sum = y[to] + term;
        }
        y[to] = sum;
    }
}
