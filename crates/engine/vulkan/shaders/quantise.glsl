// Activations in blocks of 32: bytes `q`, and `d` with the scale and the sum of the bytes. Who includes this declares the buffers q and d.
void store_block(float v[32], uint at) {
    float most = 0.0;
    [[unroll]] for (uint i = 0u; i < 32u; i++) { most = max(most, abs(v[i])); }
    precise float step_ = most / 127.0;
    float inverse = most > 0.0 ? 127.0 / most : 0.0;
    int total = 0;
    [[unroll]] for (uint w4 = 0u; w4 < 8u; w4++) {
        uint word = 0u;
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            precise float scaled = v[4u * w4 + i] * inverse;
            int n = clamp(round_away(scaled), -127, 127);
            total += n;
            word |= (uint(n) & 255u) << (8u * i);
        }
        q[8u * at + w4] = word;
    }
    d[at] = vec2(step_, float(total));
}
