// The tail of a stage that completes rows: their RMS norm, for the projections of the next stage. Who includes this defines ROW(i), and declares the
// buffers w, q, d, f and tickets.
float value(uint from, uint c, float factor) {
    precise float v = ROW(from + c);
    v = (v * factor) * w[c];
    return v;
}
#include "quantise.glsl"
#include "norm_row.glsl"
#include "tail.glsl"

// `forms`: bit 0 for int8, bit 1 for f32.
void norm_row(uint row, uint cols, float eps, uint forms) {
    float factor = norm_factor(row * cols, cols, eps);
    store_row(row, row * cols, cols, factor, (forms & 2u) != 0u, (forms & 1u) != 0u);
}
