#version 450
// A projection of each head (linear.comp): `y[t][h] = w[h] . x[t][h]`. The heads are the third dimension of the workgroups.
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#define RESIDENT
#define PER_HEAD
#include "weights.glsl"
#define COHERENT
layout(local_size_x_id = 3) in;  // 64, or 256 where stripes are split

layout(push_constant) uniform Push { uint rows, cols, n, x_stride, y_stride, has_bias; float add; } p;

#include "linear.glsl"

void main() { project(); }
