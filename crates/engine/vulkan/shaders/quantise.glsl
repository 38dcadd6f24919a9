// Activations in blocks of 32: bytes `q`, and `d` with the scale and the sum of the bytes. Who includes this declares the buffers q and d.

// Four values of a block whose largest is `most` as bytes of a word, and their sum.
uint quantised(float v[4], float most, out int total) {
    float inverse = most > 0.0 ? 127.0 / most : 0.0;
    uint word = 0u;
    total = 0;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        precise float scaled = v[i] * inverse;
        int n = clamp(round_away(scaled), -127, 127);
        total += n;
        word |= (uint(n) & 255u) << (8u * i);
    }
    return word;
}

void store_block(float v[32], uint at) {
    float most = 0.0;
    [[unroll]] for (uint i = 0u; i < 32u; i++) { most = max(most, abs(v[i])); }
    precise float step_ = most / 127.0;
    int total = 0;
    [[unroll]] for (uint w4 = 0u; w4 < 8u; w4++) {
        int part;
        q[8u * at + w4] = quantised(float[4](v[4u * w4], v[4u * w4 + 1u], v[4u * w4 + 2u], v[4u * w4 + 3u]), most, part);
        total += part;
    }
    d[at] = vec2(step_, float(total));
}
