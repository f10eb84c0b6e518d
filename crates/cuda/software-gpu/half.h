// 16-bit elements and their rounding, for library calls by plain loops.
#pragma once

#include <cstdint>
#include <cstring>

namespace software_gpu {

inline float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline float from_bfloat(uint16_t bits) { return bits_to_float(uint32_t(bits) << 16); }
inline uint16_t to_bfloat(float value) {
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_half(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * float(fraction) * 5.9604644775390625e-8f;
    return bits_to_float(sign | (exponent + 112) << 23 | fraction << 13);
}
inline uint16_t to_half(float value) {
    uint32_t bits = float_to_bits(value);
    const uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return 0x7fff;
    if (bits >= 0x477ff000) return uint16_t(sign | 0x7c00);
    if (bits < 0x38800000) return uint16_t(sign | (float_to_bits(bits_to_float(bits) + 0.5f) - 0x3f000000));
    bits += 0xc8000fff + (bits >> 13 & 1);
    return uint16_t(sign | bits >> 13);
}

// Rounds f32 to the 10 bits of mantissa that tensor cores read (TF32).
inline float to_tf32(float value) {
    const uint32_t bits = float_to_bits(value);
    if ((bits & 0x7f800000) == 0x7f800000) return value;
    return bits_to_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

} // namespace software_gpu
