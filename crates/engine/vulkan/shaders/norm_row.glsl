// A row for projections: the factor of its RMS norm, and its values as f32 and as int8 in blocks of 32. The order of operations does not depend on the
// size of the workgroup. Who includes this defines ROW(i), a value of the rows, and value(from, column, factor), declares the buffer f, and includes
// quantise.glsl.
shared float sums[128];

float norm_factor(uint from, uint cols, float eps) {
    uint me = gl_LocalInvocationID.x, size = gl_WorkGroupSize.x;
    for (uint lane = me; lane < 128u; lane += size) {
        precise float sum = 0.0;
        for (uint c = lane; c < cols; c += 128u) { sum = sum + ROW(from + c) * ROW(from + c); }
        sums[lane] = sum;
    }
    barrier();
    for (uint half_ = 64u; half_ > 0u; half_ >>= 1) {
        for (uint lane = me; lane < half_; lane += size) { precise float s = sums[lane] + sums[lane + half_]; sums[lane] = s; }
        barrier();
    }
    precise float mean = sums[0] / float(cols) + eps;
    barrier();
    return 1.0 / sqrt(mean);
}

void store_row(uint row, uint from, uint cols, float factor, bool floats, bool quants_) {
    uint me = gl_LocalInvocationID.x, size = gl_WorkGroupSize.x;
    if (floats) {
        for (uint c = me; c < cols; c += size) { f[row * cols + c] = value(from, c, factor); }
    }
    if (quants_) {
        for (uint b = me; b < (cols >> 5); b += size) {
            float v[32];
            [[unroll]] for (uint i = 0u; i < 32u; i++) { v[i] = value(from, 32u * b + i, factor); }
            store_block(v, (row * cols >> 5) + b);
        }
    }
}
