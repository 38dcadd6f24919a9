// What all kernels share: the arithmetic that gives a token the same bits in every batch, on every device.
// Only 32-bit words are read and written; halves are unpacked (exact) and rounded by our own code.
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_spirv_intrinsics : require

// Round to nearest even, where the device lets a shader say so (SPIR-V execution mode RoundingModeRTE, 32 bits).
#ifdef ROUNDING
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4467], 4462, 32);
#endif

#ifdef DOT
// OpSDot on four packed bytes each; 0 is PackedVectorFormat4x8Bit.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int sdot4(int a, int b, spirv_literal int format);
int dot4(uint a, uint b) { return sdot4(int(a), int(b), 0); }
#else
int dot4(uint a, uint b) {
    int x = int(a), y = int(b);
    return bitfieldExtract(x, 0, 8) * bitfieldExtract(y, 0, 8) + bitfieldExtract(x, 8, 8) * bitfieldExtract(y, 8, 8)
         + bitfieldExtract(x, 16, 8) * bitfieldExtract(y, 16, 8) + (x >> 24) * (y >> 24);
}
#endif

// Sum of four packed signed bytes.
int sum4(uint a) { return dot4(a, 0x01010101u); }

float half_at(uint word, bool high) {
    vec2 both = unpackHalf2x16(word);
    return high ? both.y : both.x;
}

// f32 to f16, round to nearest even; packHalf2x16 leaves the rounding open.
uint to_half(float f) {
    uint x = floatBitsToUint(f), sign = (x >> 16) & 0x8000u, a = x & 0x7fffffffu;
    if (a >= 0x47800000u) { return sign | (a > 0x7f800000u ? 0x7e00u : 0x7c00u); }
    if (a < 0x38800000u) {
        if (a < 0x33000000u) { return sign; }
        uint shift = 126u - (a >> 23), mantissa = (a & 0x7fffffu) | 0x800000u;
        uint q = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), half_way = 1u << (shift - 1u);
        return sign | (q + ((rest > half_way || (rest == half_way && (q & 1u) == 1u)) ? 1u : 0u));
    }
    uint q = (a - 0x38000000u) >> 13, rest = a & 0x1fffu;
    return sign | (q + ((rest > 0x1000u || (rest == 0x1000u && (q & 1u) == 1u)) ? 1u : 0u));
}

float sigmoid(float x) { return 1.0 / (1.0 + exp(-x)); }

// `cap tanh(x / cap)`; tanh(x) is 1 - 2 / (1 + e^2x).
float capped(float x, float cap) {
    precise float t = x / cap;
    precise float y = cap * (1.0 - 2.0 / (1.0 + exp(t + t)));
    return y;
}

// Rounds to the nearest integer, halves away from zero, as ggml's quantisers do.
int round_away(float x) { return int(x + (x < 0.0 ? -0.5 : 0.5)); }
