#version 450
// Rows of the embedding table of the tokens that `pick` found in the step before: of each row's largest logits the largest, the lower id first on a tie.
// The table is in the file's own layout, and values have the bits of the host's `dequantize`. A workgroup computes 256 values of a row.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
layout(local_size_x = 256) in;
layout(constant_id = 0) const uint TYPE = 0;  // as in `embed.rs`

const uint F32 = 0u, F16 = 1u, BF16 = 2u, Q8_0 = 3u, Q4_K = 4u, Q5_K = 5u, Q6_K = 6u;
const uint PICKS = 64u;

layout(binding = 0, std430) readonly buffer Picks { uint picks[]; };  // as `pick.comp` writes them
layout(binding = 1, std430) readonly buffer Table { uint table[]; };
layout(binding = 2, std430) writeonly buffer Rows { float rows[]; };  // [tokens, cols]

// Columns, rows of the table, bytes of a row, and a factor of the values.
layout(push_constant) uniform Push { uint cols; uint vocab; uint row_bytes; float scale; } p;

shared uint chosen;

// A table may be of 4 GiB less a word, so its bytes have 32 bits.
uint byte_at(uint at) { return (table[at >> 2] >> (8u * (at & 3u))) & 255u; }
uint half_bits(uint at) { return byte_at(at) | (byte_at(at + 1u) << 8); }
float half_of(uint at) { return half_at(half_bits(at), false); }
int signed(uint byte) { return bitfieldExtract(int(byte), 0, 8); }

// Scale and minimum of sub-block `s` of a block whose 12 packed bytes start at `at`.
uvec2 scale_and_min(uint at, uint s) {
    if (s < 4u) { return uvec2(byte_at(at + s) & 63u, byte_at(at + 4u + s) & 63u); }
    uint low = byte_at(at + 4u + s);
    return uvec2((low & 15u) | ((byte_at(at + s - 4u) >> 6) << 4), (low >> 4) | ((byte_at(at + s) >> 6) << 4));
}

float affine(uint at, uint packed, uint s, uint q) {
    uvec2 both = scale_and_min(packed, s);
    precise float scale = half_of(at) * float(both.x);
    precise float least = half_of(at + 2u) * float(both.y);
    precise float product = scale * float(q);
    precise float value = product - least;
    return value;
}

// Value `i` of the row that starts at byte `row`.
float value(uint row, uint i) {
    if (TYPE == F32) { return uintBitsToFloat(table[(row >> 2) + i]); }
    if (TYPE == F16) { return half_of(row + 2u * i); }
    if (TYPE == BF16) { return uintBitsToFloat(half_bits(row + 2u * i) << 16); }
    if (TYPE == Q8_0) {
        uint at = row + 34u * (i / 32u);
        precise float value = half_of(at) * float(signed(byte_at(at + 2u + i % 32u)));
        return value;
    }
    uint l = i % 256u, s = l / 32u, j = l % 32u, low = 4u * (s & 1u);
    if (TYPE == Q4_K) {
        uint at = row + 144u * (i / 256u);
        uint q = (byte_at(at + 16u + 32u * (s / 2u) + j) >> low) & 15u;
        return affine(at, at + 4u, s, q);
    }
    if (TYPE == Q5_K) {
        uint at = row + 176u * (i / 256u);
        uint q = (byte_at(at + 48u + 32u * (s / 2u) + j) >> low) & 15u;
        q |= ((byte_at(at + 16u + j) >> s) & 1u) << 4;
        return affine(at, at + 4u, s, q);
    }
    // Q6_K: 16 sub-blocks of 16
    uint at = row + 210u * (i / 256u), half_ = l / 128u, part = (l / 32u) % 4u;
    uint q = (byte_at(at + 64u * half_ + 32u * (part & 1u) + j) >> (4u * (part / 2u))) & 15u;
    q |= ((byte_at(at + 128u + 32u * half_ + j) >> (2u * part)) & 3u) << 4;
    precise float scale = half_of(at + 208u) * float(signed(byte_at(at + 192u + l / 16u)));
    precise float value = scale * float(int(q) - 32);
    return value;
}

void main() {
    uint token = gl_WorkGroupID.y, from = (2u + 2u * PICKS) * token;
    if (gl_LocalInvocationID.x == 0u) {
        uint best = 0u, most = 0u, count = min(picks[from], PICKS);
        for (uint i = 0u; i < count; i++) {
            // in an order that integers compare, as in `pick.comp`; ids ascend, so the first of equal logits is the one
            uint bits = picks[from + 3u + 2u * i];
            bits = bits == 0x80000000u ? 0u : bits;
            uint key = (bits >> 31) == 1u ? ~bits : bits | 0x80000000u;
            if (key > most) { most = key; best = picks[from + 2u + 2u * i]; }
        }
        // whatever a driver may have written
        chosen = best < p.vocab ? best : 0u;
    }
    barrier();
    uint i = 256u * gl_WorkGroupID.x + gl_LocalInvocationID.x;
    if (i < p.cols) {
        precise float scaled = value(chosen * p.row_bytes, i) * p.scale;
        rows[token * p.cols + i] = scaled;
    }
}
