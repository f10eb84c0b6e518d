// Images as bytes to normalised maps: cut out, turned over, and (byte / 255 − mean) / std in one pass.

struct Images {
    int height, width, channels, out_height, out_width;
};
struct Channels {
    float mean[4], std[4];
};
// Whether bytes and maps are [N, H, W, C]; else they are [N, C, H, W].
struct Last {
    int bytes, maps;
};

// Sample n begins at corners[2n] (down) and corners[2n + 1] (across) of its image, negative within a black border, or at 0 if
// there are none; it is turned left to right where `flips` has 1.
template <class Y>
DEVICE void images(const u8 *pixels, const int *corners, const u8 *flips, Y *y, const Images &shape, const Channels &by, const Last &last,
                   Size count) {
    const int plane = shape.out_height * shape.out_width;
    const Size pixels_of_plane = Size(shape.height) * shape.width;
    // A thread for each pixel, so that its bytes are read once.
    each<1>(count, false, [&](Size at, auto) {
        const Size sample = at / plane;
        const int place = int(at - sample * plane), row = place / shape.out_width;
        int column = place % shape.out_width;
        if (flips && flips[sample]) column = shape.out_width - 1 - column;
        const int down = row + (corners ? corners[2 * sample] : 0), across = column + (corners ? corners[2 * sample + 1] : 0);
        const bool inside = down >= 0 && down < shape.height && across >= 0 && across < shape.width;
        const Size place_of_byte = Size(down) * shape.width + across;
        const u8 *from = pixels + sample * pixels_of_plane * shape.channels +
                         (last.bytes ? place_of_byte * shape.channels : place_of_byte);
        const Size step = last.bytes ? 1 : pixels_of_plane;
        for (int c = 0; c < shape.channels; ++c) {
            const float byte = inside ? float(from[c * step]) : 0.0f;
            const Y value = narrow<Y>((byte / 255.0f - by.mean[c]) / by.std[c]);
            y[last.maps ? at * shape.channels + c : (sample * shape.channels + c) * plane + place] = value;
        }
    });
}

#define IMAGES(S, Y)                                                                                                         \
    KERNEL(images_##S, 256, const u8 *pixels, const int *corners, const u8 *flips, Y *y, Images shape, Channels by,          \
           Last last, Size count) {                                                                                          \
        images(pixels, corners, flips, y, shape, by, last, count);                                                           \
    }
FOR_F32(IMAGES(f32, float))
FOR_BF16(IMAGES(bf16, bf16))
FOR_F16(IMAGES(f16, f16))
