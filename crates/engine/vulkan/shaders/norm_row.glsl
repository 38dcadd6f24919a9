// A row for projections: the factor of its RMS norm, and its values as f32 and as int8 in blocks of 32. The order of operations does not depend on the
// size of the workgroup. Who includes this defines ROW(i), a value of the rows, and value(from, column, factor), declares the buffer f, and includes
// quantise.glsl.
shared float sums[128];
shared float largest[256];
shared int totals[256];

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
    if (!quants_) { return; }
    // As store_block: 8 invocations a block, with 4 values each. The largest and a sum of integers do not depend on an order.
    for (uint first = 0u; first < (cols >> 2); first += size) {
        uint word = first + me;
        bool is_inside = word < (cols >> 2);
        float v[4];
        float most = 0.0;
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            v[i] = is_inside ? value(from, 4u * word + i, factor) : 0.0;
            most = max(most, abs(v[i]));
        }
        largest[me] = most;
        barrier();
        [[unroll]] for (uint i = 0u; i < 8u; i++) { most = max(most, largest[(me & ~7u) + i]); }
        precise float step_ = most / 127.0;
        int total;
        uint bytes = quantised(v, most, total);
        totals[me] = total;
        barrier();
        if (is_inside) {
            q[(row * cols >> 2) + word] = bytes;
            if ((me & 7u) == 0u) {
                for (uint i = 1u; i < 8u; i++) { total += totals[me + i]; }
                d[(row * cols + 4u * word) >> 5] = vec2(step_, float(total));
            }
        }
        barrier();
    }
}
