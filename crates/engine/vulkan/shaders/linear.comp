#version 450
// Projections: `y[t][row] (+)= bias[row] + w[row] . x[t]`. A workgroup has 8 rows and 8 lanes each, and up to TOKENS tokens.
// With EXPERTS set, the workgroup's tokens come from a tile of one expert's pairs (group.comp).
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
#define COHERENT
layout(local_size_x_id = 3) in;  // 64, or 256 where stripes are split

layout(push_constant) uniform Push {
    uint rows, cols, n;
    uint x_stride;    // columns from one row of x to the next
    uint y_stride;
    uint has_bias;
    float add;        // factor of what is added to y; 0: y is replaced
    uint divide;      // experts: row of x of pair p is p / divide
    uint slots_at;
} p;

#include "linear.glsl"

void main() { project(); }
