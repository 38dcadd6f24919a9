// Activations of feed-forward blocks, by the numbers of `verbs/act.rs`. Who includes this declares the push constants `alpha` and `limit`.
layout(constant_id = 3) const uint ACT = 0u;
const uint SILU = 0u, GELU = 1u, GELU_ERF = 2u, RELU2 = 3u, CLAMPED = 4u, CAPPED = 5u, XIELU = 6u;

// `x (1 + erf(x / sqrt(2))) / 2` by Abramowitz and Stegun's formula 7.1.26 (absolute error 1.5e-7).
float gelu_erf(float x) {
    precise float size = abs(x) * 0.70710678;
    precise float t = 1.0 / (1.0 + 0.3275911 * size);
    precise float poly = 0.2548296 + t * (-0.28449674 + t * (1.4214137 + t * (-1.4531521 + t * 1.0614054)));
    precise float rest = 0.5 * ((poly * t) * exp(-(size * size)));
    precise float y = max(x, 0.0) - abs(x) * rest;
    return y;
}

float activate(float x) {
    if (ACT == GELU) {  // (1 + tanh(u)) / 2 is sigmoid(2 u)
        precise float inner = 1.5957691 * (x + 0.044715 * ((x * x) * x));
        precise float y = x * sigmoid(inner);
        return y;
    }
    if (ACT == GELU_ERF) { return gelu_erf(x); }
    if (ACT == RELU2) {
        precise float y = max(x, 0.0) * max(x, 0.0);
        return y;
    }
    if (ACT == CLAMPED) {
        float g = min(x, p.limit);
        precise float y = g * sigmoid(p.alpha * g);
        return y;
    }
    if (ACT == XIELU) {
        float above = max(x, 0.0), below = min(x, 0.0);
        precise float y = p.alpha * (above * above) + (p.limit * ((exp(below) - 1.0) - below) + 0.5 * x);
        return y;
    }
    precise float y = x * sigmoid(x);
    return ACT == CAPPED ? min(y, p.limit) : y;
}

// The activated gate times `up`.
float activated_times(float gate, float up) {
    float bounded = ACT == CLAMPED || ACT == CAPPED ? clamp(up, -p.limit, p.limit) : up;
    precise float u = ACT == CLAMPED ? bounded + 1.0 : bounded;
    precise float y = activate(gate) * u;
    return y;
}
