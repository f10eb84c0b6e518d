// Conversion of byte images to normalised maps: lookup, crop, flip, (byte / 255 − mean) / std, erased rectangles and mixtures of two
// images in one pass.

struct Images {
    int images, height, width, channels, out_height, out_width;
};
struct Channels {
    float mean[4], std[4];
};
// True for [N, H, W, C], false for [N, C, H, W]: of the bytes and of the maps.
struct Last {
    int bytes, maps;
};
// A rectangle of a map.
struct Patch {
    int top, left, height, width;
    __device__ __forceinline__ bool has(int row, int column) const {
        return row >= top && row < top + height && column >= left && column < left + width;
    }
};
// The source of a map: the image, its first row and column (negative inside a black border), 1 for a horizontal flip, and what is 0
// of the map.
struct Crop {
    int image, top, left, flipped;
    Patch erased;
};
struct Shares {
    float own, other;
};
// The mixture of two maps: none, all pixels by their shares, or a patch of the other one.
struct Mixture {
    int kind;
    Patch patch;
};

// A pixel of a map before its normalisation.
struct Pixel {
    const u8 *bytes;
    bool there, inside, erased;

    DEVICE Pixel of(const u8 *pixels, const Crop &from, const Images &shape, const Last &last, int row, int column) {
        Pixel pixel;
        pixel.erased = from.erased.has(row, column);
        if (from.flipped) column = shape.out_width - 1 - column;
        const int down = row + from.top, across = column + from.left;
        pixel.there = from.image >= 0 && from.image < shape.images;
        pixel.inside = pixel.there && down >= 0 && down < shape.height && across >= 0 && across < shape.width;
        const Size place_of_byte = Size(down) * shape.width + across;
        pixel.bytes = pixels + Size(from.image) * shape.height * shape.width * shape.channels +
                      (last.bytes ? place_of_byte * shape.channels : place_of_byte);
        return pixel;
    }

    __device__ __forceinline__ float value(int channel, Size step, const Channels &by) const {
        if (!there) return NAN_F32;
        if (erased) return 0.0f;
        const float byte = inside ? float(bytes[channel * step]) : 0.0f;
        return (byte / 255.0f - by.mean[channel]) / by.std[channel];
    }
};

// Map n comes from places[n], or is all of image n without places. With a mixture it comes from places[2n] and places[2n + 1]. An index
// beyond the images gives NaN.
template <class Y>
DEVICE void images(const u8 *pixels, const Crop *places, Y *y, const Images &shape, const Channels &by, const Shares &shares,
                   const Mixture &mixture, const Last &last, Size count) {
    const int plane = shape.out_height * shape.out_width;
    // A thread for each pixel, so that its bytes are read once.
    each<1>(count, false, [&](Size at, auto) {
        const Size sample = at / plane;
        const int place = int(at - sample * plane), row = place / shape.out_width, column = place % shape.out_width;
        const bool mixed = mixture.kind != 0, from_other = mixture.kind == 2 && mixture.patch.has(row, column);
        Crop from = {int(sample), 0, 0, 0, {0, 0, 0, 0}};
        if (places) from = places[mixed ? 2 * sample + from_other : sample];
        const Pixel own = Pixel::of(pixels, from, shape, last, row, column);
        const Size step = last.bytes ? 1 : Size(shape.height) * shape.width;
        Pixel other = own;
        if (mixture.kind == 1) other = Pixel::of(pixels, places[2 * sample + 1], shape, last, row, column);
        for (int c = 0; c < shape.channels; ++c) {
            float value = own.value(c, step, by);
            // Without a fused product, as on the CPU.
            if (mixture.kind == 1)
                value = __fadd_rn(__fmul_rn(shares.own, value), __fmul_rn(shares.other, other.value(c, step, by)));
            y[last.maps ? at * shape.channels + c : (sample * shape.channels + c) * plane + place] = narrow<Y>(value);
        }
    });
}

#define IMAGES(S, Y)                                                                                                         \
    KERNEL(images_##S, 256, const u8 *pixels, const Crop *places, Y *y, Images shape, Channels by, Shares shares,            \
           Mixture mixture, Last last, Size count) {                                                                         \
        images(pixels, places, y, shape, by, shares, mixture, last, count);                                                  \
    }
FOR_F32(IMAGES(f32, float))
FOR_BF16(IMAGES(bf16, bf16))
FOR_F16(IMAGES(f16, f16))

// Copies row n of `from` to row rows[n] of `to`, which has `count` rows; other indices are skipped.
KERNEL(put_rows, 256, u8 *to, u32 rows_there, const u8 *from, const u32 *rows, Size width, Size count) {
    each<1>(count, false, [&](Size at, auto) {
        const u32 row = rows[at / width];
        if (row < rows_there) to[row * width + at % width] = from[at];
    });
}
