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

// A stripe of a row is shared by all invocations of a workgroup that are left over, so that enough reads are under way: each computes the terms of every
// `split`-th block (or column, of float types), and the first adds them in the stripe's order. So the bits are those of one invocation a stripe, as
// software devices have it. Those of one token compute several terms before they are added.
#ifndef ROWS
#define ROWS 8u
#endif
const uint STRIPES = 8u * ROWS;
const uint EACH = TOKENS > 1u ? 1u : TYPE <= BF16 ? 8u : 4u, TERMS = 256u * EACH;
shared float terms[TERMS * TOKENS];
shared float partial[STRIPES * TOKENS];

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
float acc[TOKENS];

// If `split` is 1, terms are added at once.
void add_term(uint t, uint at, uint split, float term) {
    if (split > 1u) {
        terms[t * TERMS + at] = term;
    } else {
        precise float next = acc[t] + term;
        acc[t] = next;
    }
}

void project() {
    uint own = gl_LocalInvocationID.x % STRIPES, part = gl_LocalInvocationID.x / STRIPES, split = gl_WorkGroupSize.x / STRIPES;
    uint lane = own & 7u, slot = own >> 3;
    uint row = gl_WorkGroupID.x * ROWS + slot, first = gl_WorkGroupID.y * TOKENS, count = min(TOKENS, p.n - min(p.n, first));
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
    uint source[TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
        acc[t] = 0.0;
        source[t] = source_of(min(t, count - 1u) + first);
    }
    uint w_row = expert * p.rows + min(row, p.rows - 1u);
    if (NARROW) {  // one invocation a stripe
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
        uint blocks = TYPE <= BF16 ? p.cols : p.cols >> 5, steps = (blocks + 7u) >> 3, segment = split * EACH;
        for (uint from = 0u; from < steps; from += segment) {
            [[unroll]] for (uint e = 0u; e < EACH; e++) {
                uint at_term = part + split * e, step = from + at_term;
                uint block = TYPE <= BF16 ? 8u * step + lane : lane * steps + step;
                if (step >= steps || block >= blocks) { continue; }
                if (TYPE <= BF16) {
                    float w = float_weight(w_row, block, p.cols);
                    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                        uint at = source[t] * p.x_stride + block;
                        precise float term = w * uintBitsToFloat(x[at >> 2][at & 3u]);
                        add_term(t, at_term * STRIPES + own, split, term);
                    }
                } else {
                    Block b = load_block((w_row * steps + step) * 8u + lane, w_row, block, blocks);
                    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                        uint at = source[t] * (p.x_stride >> 5) + block;
                        vec2 d = dx[at];
                        add_term(t, at_term * STRIPES + own, split, block_term(b, x[2u * at], x[2u * at + 1u], d.x, d.y));
                    }
                }
            }
            if (split == 1u) { continue; }
            barrier();
            if (part == 0u) {
                for (uint i = 0u; i < min(segment, steps - from); i++) {
                    uint step = from + i, block = TYPE <= BF16 ? 8u * step + lane : lane * steps + step;
                    if (block >= blocks) { break; }
                    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                        precise float next = acc[t] + terms[t * TERMS + i * STRIPES + own];
                        acc[t] = next;
                    }
                }
            }
            barrier();
        }
    }
    if (part == 0u) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) { partial[t * STRIPES + own] = acc[t]; }
    }
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < ROWS * count; i += gl_WorkGroupSize.x) {
        uint t = i / ROWS, slot = i % ROWS, r = gl_WorkGroupID.x * ROWS + slot;
        if (r >= p.rows) { continue; }
        precise float sum = partial[t * STRIPES + slot * 8u];
        for (uint l = 1u; l < 8u; l++) { sum = sum + partial[t * STRIPES + slot * 8u + l]; }
        if (p.has_bias == 1u) { sum = sum + bias[matrix * p.rows + r]; }
        uint to = target_of(first + t) * p.y_stride + r;
        if (p.add != 0.0) {
            precise float term = p.add * sum;
            sum = y[to] + term;
        }
        y[to] = sum;
    }
}
