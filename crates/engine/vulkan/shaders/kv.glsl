// Rows of keys and values in the cache, as 32-bit words. f32: a word a value; f16: two; q8_0: per block of 32 values 8 words of bytes and one
// word with the f16 scale, the scales behind the bytes.
const uint KV_F32 = 0u, KV_F16 = 1u, KV_Q8_0 = 2u;

uint kv_words(uint type, uint dim) {
    return type == KV_F32 ? dim : type == KV_F16 ? dim / 2u : dim / 4u + dim / 32u;
}
