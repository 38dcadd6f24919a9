// Rows of weights in the device's layout (src/weights.rs packs it) times quantised activations: one block of 32 columns.
// Columns of a row are cut into 8 contiguous stripes of whole blocks; piece `step` of stripe `lane` lies at
// `(row * steps + step) * 8 + lane`, so that the 8 lanes of a row read 128 bytes side by side.

const uint F32 = 0u, F16 = 1u, BF16 = 2u, Q8_0 = 3u, I8 = 4u, Q4_K = 5u, Q5_K = 6u, Q6_K = 7u;
const uint Q3_K = 8u, IQ4 = 9u, MXFP4 = 10u, Q4_0 = 11u, NVFP4 = 12u, I4_Z = 13u, Q8_ROW = 14u, Q4_1 = 15u, Q5_0 = 16u, Q5_1 = 17u;
const uint F8 = 18u, F8_128 = 19u, F8_32 = 20u, NF4 = 21u, FP4 = 22u, Q1_0 = 23u, Q2_0 = 24u;

layout(constant_id = 0) const uint TYPE = 3u;
// Float types of less than 16 bits.
const bool NARROW = TYPE >= F8;
// Quantised types with a scale of each half of a block; with a minimum.
const bool HALVES = TYPE == Q6_K || TYPE == Q3_K || TYPE == NVFP4;
const bool MINIMUM = TYPE == Q4_K || TYPE == Q5_K || TYPE == I8 || TYPE == I4_Z || TYPE == Q4_1 || TYPE == Q5_1;
layout(constant_id = 2) const uint EXPERTS = 0u;  // 1: tiles of experts; 2: the same, and some experts lie in the host's memory

layout(binding = 0, std430) readonly buffer Quants { uvec4 quants[]; };
layout(binding = 1, std430) readonly buffer High { uint high[]; };
layout(binding = 2, std430) readonly buffer Scales { uint scales[]; };
#if defined(TWO_MATRICES)
layout(binding = 3, std430) readonly buffer Quants2 { uvec4 quants2[]; };
layout(binding = 4, std430) readonly buffer High2 { uint high2[]; };
layout(binding = 5, std430) readonly buffer Scales2 { uint scales2[]; };

// Whether the second matrix is read.
bool second = false;

uvec4 quant_at(uint i) { return second ? quants2[i] : quants[i]; }
uint high_at(uint i) { return second ? high2[i] : high[i]; }
uint scale_at(uint i) { return second ? scales2[i] : scales[i]; }
#elif defined(RESIDENT)
uvec4 quant_at(uint i) { return quants[i]; }
uint high_at(uint i) { return high[i]; }
uint scale_at(uint i) { return scales[i]; }
#else
layout(binding = 9, std430) readonly buffer HostQuants { uvec4 host_quants[]; };
layout(binding = 10, std430) readonly buffer HostHigh { uint host_high[]; };
layout(binding = 11, std430) readonly buffer HostScales { uint host_scales[]; };

// Whether this workgroup's expert has no slot in the device's memory.
bool in_host = false;

uvec4 quant_at(uint i) { return EXPERTS == 2u && in_host ? host_quants[i] : quants[i]; }
uint high_at(uint i) { return EXPERTS == 2u && in_host ? host_high[i] : high[i]; }
uint scale_at(uint i) { return EXPERTS == 2u && in_host ? host_scales[i] : scales[i]; }
#endif

// Spreads 4 bits to the lowest bits of 4 bytes.
uint spread(uint bits) { return ((bits & 15u) * 0x00204081u) & 0x01010101u; }

// The signed bytes that 4-bit indices stand for, 4 in a word: of IQ4_NL and IQ4_XS, and of MXFP4 (twice the values).
const uvec4 IQ4_LEVELS = uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
const uvec4 MXFP4_LEVELS = uvec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);

// The levels of four indices, one in each byte.
uint levels(uint indices) {
    if (TYPE == Q4_0) { return ((indices | 0x80808080u) - 0x08080808u) ^ 0x80808080u; }  // minus 8, byte by byte
    // Word by word: Mesa 22.3 chooses wrongly between two constant vectors.
    uint x = TYPE == IQ4 ? IQ4_LEVELS.x : MXFP4_LEVELS.x, y = TYPE == IQ4 ? IQ4_LEVELS.y : MXFP4_LEVELS.y;
    uint z = TYPE == IQ4 ? IQ4_LEVELS.z : MXFP4_LEVELS.z, w = TYPE == IQ4 ? IQ4_LEVELS.w : MXFP4_LEVELS.w;
    uint bytes = 0u;
    [[unroll]] for (uint shift = 0u; shift < 32u; shift += 8u) {
        uint i = indices >> shift;
        uint low = (i & 4u) == 0u ? x : y, high = (i & 4u) == 0u ? z : w;
        uint four = (i & 8u) == 0u ? low : high;
        bytes |= ((four >> (8u * (i & 3u))) & 255u) << shift;
    }
    return bytes;
}

// An 8-bit float in E4M3. What is no number there, 0x7F, goes on as 480, as on the processor.
float e4m3(uint byte) {
    uint e = (byte >> 3) & 15u, m = byte & 7u;
    float size = e == 0u ? float(m) * (1.0 / 512.0) : uintBitsToFloat(((e + 120u) << 23) | (m << 20));
    return (byte & 128u) == 0u ? size : -size;
}

struct Block {
    uint q[8];  // 32 signed bytes, in the order of the columns
    float d0, d1, m;  // scales of the two halves, and the minimum (subtracted)
};

// 6-bit scale and minimum `j` of a superblock whose 12 bytes are y, z, w.
uvec2 scale_min(uvec4 s, uint j) {
    uint shift = 8u * (j & 3u);
    uint a = (s.y >> shift) & 255u, b = (s.z >> shift) & 255u, c = (s.w >> shift) & 255u;
    return j < 4u ? uvec2(a & 63u, b & 63u) : uvec2((c & 15u) | ((a >> 6) << 4), (c >> 4) | ((b >> 6) << 4));
}

// The scale of a block, where a row has an f16 of each, and its factor.
float half_of_row(uint row, uint block, uint blocks) {
    uint words = (blocks + 1u) >> 1, base = row * (words + 1u);
    return half_at(scale_at(base + (block >> 1)), (block & 1u) == 1u) * uintBitsToFloat(scale_at(base + words));
}

// The same, where it has an exponent of each: half of 2^(e - 127), as the levels are twice the values.
float exponent_of_row(uint row, uint block, uint blocks) {
    uint words = (blocks + 3u) >> 2, base = row * (words + 1u);
    uint e = (scale_at(base + (block >> 2)) >> (8u * (block & 3u))) & 255u;
    return uintBitsToFloat(e < 2u ? 0x00200000u << e : (e - 1u) << 23) * uintBitsToFloat(scale_at(base + words));
}

// Block `block` of `row`: piece `at` of the planes. `superblocks` of a row.
Block load_block(uint at, uint row, uint block, uint blocks) {
    Block b;
    b.m = 0.0;
    if (TYPE == Q8_0 || TYPE == I8 || TYPE == Q8_ROW) {
        uvec4 lo = quant_at(2u * at), hi = quant_at(2u * at + 1u);
        b.q[0] = lo.x; b.q[1] = lo.y; b.q[2] = lo.z; b.q[3] = lo.w;
        b.q[4] = hi.x; b.q[5] = hi.y; b.q[6] = hi.z; b.q[7] = hi.w;
        uint index = row * blocks + block;
        if (TYPE == Q8_0) {
            b.d0 = half_at(scale_at(index >> 1), (index & 1u) == 1u);
        } else if (TYPE == Q8_ROW) {
            b.d0 = half_of_row(row, block, blocks);
        } else {
            b.d0 = uintBitsToFloat(scale_at(2u * index));
            b.m = uintBitsToFloat(scale_at(2u * index + 1u));
        }
        b.d1 = b.d0;
        return b;
    }
    uvec4 n = quant_at(at);
    uint superblocks = blocks >> 3, sub = block & 7u, index = row * superblocks + (block >> 3);
    [[unroll]] for (uint w = 0u; w < 4u; w++) {
        b.q[w] = n[w] & 0x0f0f0f0fu;
        b.q[4u + w] = (n[w] >> 4) & 0x0f0f0f0fu;
    }
    if (TYPE == Q5_K || TYPE == Q5_0 || TYPE == Q5_1) {
        uint bits = high_at(at);
        [[unroll]] for (uint w = 0u; w < 8u; w++) { b.q[w] |= spread(bits >> (4u * w)) << 4; }
    }
    if (TYPE == Q4_1 || TYPE == Q5_1) {
        vec2 both = unpackHalf2x16(scale_at(row * blocks + block));
        b.d0 = both.x;
        b.d1 = both.x;
        b.m = -both.y;
        return b;
    }
    if (TYPE == Q5_0) {
        [[unroll]] for (uint w = 0u; w < 8u; w++) { b.q[w] = ((b.q[w] | 0x80808080u) - 0x10101010u) ^ 0x80808080u; }  // minus 16, byte by byte
        b.d0 = half_of_row(row, block, blocks);
        b.d1 = b.d0;
        return b;
    }
    if (TYPE == I4_Z) {
        // of a row: an f16 of each block, a byte of each, the row's factor
        uint scales_ = (blocks + 1u) >> 1, zeros = (blocks + 3u) >> 2, base = row * (scales_ + zeros + 1u);
        uint zero = (scale_at(base + scales_ + (block >> 2)) >> (8u * (block & 3u))) & 255u;
        b.d0 = half_at(scale_at(base + (block >> 1)), (block & 1u) == 1u) * uintBitsToFloat(scale_at(base + scales_ + zeros));
        b.d1 = b.d0;
        b.m = b.d0 * float(zero);
        return b;
    }
    if (TYPE >= IQ4) {
        [[unroll]] for (uint w = 0u; w < 8u; w++) { b.q[w] = levels(b.q[w]); }
        if (TYPE == NVFP4) {
            // of a row: two bytes of each block, the row's factor
            uint base = row * ((blocks >> 1) + 1u), pair = scale_at(base + (block >> 1)) >> (16u * (block & 1u));
            float factor = 0.5 * uintBitsToFloat(scale_at(base + (blocks >> 1)));  // the levels are twice the values
            b.d0 = e4m3(pair & 255u) * factor;
            b.d1 = e4m3((pair >> 8) & 255u) * factor;
            return b;
        }
        if (TYPE == Q4_0) {
            b.d0 = half_of_row(row, block, blocks);
        } else if (TYPE == MXFP4) {
            b.d0 = exponent_of_row(row, block, blocks);
        } else {
            b.d0 = uintBitsToFloat(scale_at(row * blocks + block));
        }
        b.d1 = b.d0;
        return b;
    }
    if (TYPE == Q6_K || TYPE == Q3_K) {
        [[unroll]] for (uint h = 0u; h < 2u; h++) {
            uint two = TYPE == Q6_K ? high_at(2u * at + h) : 0u;
            uint middle = TYPE == Q6_K ? 0x20202020u : 0x04040404u;  // minus 32 or 4, byte by byte
            [[unroll]] for (uint w = 0u; w < 4u; w++) {
                uint q = b.q[4u * h + w] | (((two >> (2u * w)) & 0x03030303u) << 4);
                b.q[4u * h + w] = ((q | 0x80808080u) - middle) ^ 0x80808080u;
            }
        }
        uint base = 5u * index, pair = scale_at(base + (sub >> 1)) >> (16u * (sub & 1u));
        float d = half_at(scale_at(base + 4u), false);
        b.d0 = d * float(bitfieldExtract(int(pair), 0, 8));
        b.d1 = d * float(bitfieldExtract(int(pair), 8, 8));
        return b;
    }
    uvec4 s = uvec4(scale_at(4u * index), scale_at(4u * index + 1u), scale_at(4u * index + 2u), scale_at(4u * index + 3u));
    uvec2 sm = scale_min(s, sub);
    vec2 d = unpackHalf2x16(s.x);
    b.d0 = d.x * float(sm.x);
    b.d1 = b.d0;
    b.m = d.y * float(sm.y);
    return b;
}

// One f32 term of a block: exact integers, then operations in one fixed order.
float block_term(Block b, uvec4 x0, uvec4 x1, float dx, float sum) {
    int lo = dot4(b.q[0], x0.x) + dot4(b.q[1], x0.y) + dot4(b.q[2], x0.z) + dot4(b.q[3], x0.w);
    int hi = dot4(b.q[4], x1.x) + dot4(b.q[5], x1.y) + dot4(b.q[6], x1.z) + dot4(b.q[7], x1.w);
    precise float term;
    if (HALVES) {
        precise float a = (b.d0 * dx) * float(lo);
        term = a + (b.d1 * dx) * float(hi);
    } else {
        term = (b.d0 * dx) * float(lo + hi);
    }
    if (MINIMUM) {
        precise float minimum = (b.m * dx) * sum;
        term = term - minimum;
    }
    return term;
}

// One weight of a float type.
float float_weight(uint row, uint col, uint cols) {
    if (TYPE == F32) { return uintBitsToFloat(scale_at(row * cols + col)); }
    uint stride = (cols + 1u) >> 1, word = scale_at(row * stride + (col >> 1));
    if (TYPE == F16) { return half_at(word, (col & 1u) == 1u); }
    return uintBitsToFloat((col & 1u) == 1u ? (word & 0xffff0000u) : (word << 16));
}

// bitsandbytes' tables.
const float NF4_LEVELS[16] = float[](-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0);
const float FP4_SIZES[8] = float[](0.0, 0.0052083335, 0.6666667, 1.0, 0.33333334, 0.5, 0.16666667, 0.25);

// Bits of a narrow float; columns under one scale.
uint narrow_bits() { return TYPE == Q1_0 ? 1u : TYPE == Q2_0 ? 2u : TYPE >= NF4 ? 4u : 8u; }
uint narrow_group(uint cols) { return TYPE == F8 ? cols : TYPE == F8_32 ? 32u : TYPE == F8_128 || TYPE == Q1_0 ? 128u : 64u; }

// A narrow float without its scale.
float narrow_value(uint q) {
    if (TYPE == Q1_0) { return q == 0u ? -1.0 : 1.0; }
    if (TYPE == Q2_0) { return float(q) - 1.0; }
    if (TYPE == NF4) { return NF4_LEVELS[q]; }
    if (TYPE == FP4) { return q < 8u ? FP4_SIZES[q] : -FP4_SIZES[q & 7u]; }
    return e4m3(q);
}
