// Images as bytes to normalised maps: looked up, cut out, turned over, and (byte / 255 − mean) / std in one pass.

struct Images {
    int images, height, width, channels, out_height, out_width;
};
struct Channels {
    float mean[4], std[4];
};
// Whether bytes and maps are [N, H, W, C]; else they are [N, C, H, W].
struct Last {
    int bytes, maps;
};
// Where a map comes from: of which image, beginning in which row and column of it, negative within a black border; and whether it
// is then turned left to right.
struct Place {
    int image, top, left, flipped;
};

// Map n comes from places[n], or is all of image n if there are no places. An image that is not there makes NaN.
template <class Y>
DEVICE void images(const u8 *pixels, const Place *places, Y *y, const Images &shape, const Channels &by, const Last &last, Size count) {
    const int plane = shape.out_height * shape.out_width;
    const Size pixels_of_plane = Size(shape.height) * shape.width;
    // A thread for each pixel, so that its bytes are read once.
    each<1>(count, false, [&](Size at, auto) {
        const Size sample = at / plane;
        const int place = int(at - sample * plane), row = place / shape.out_width;
        int column = place % shape.out_width;
        Place from = {int(sample), 0, 0, 0};
        if (places) from = places[sample];
        if (from.flipped) column = shape.out_width - 1 - column;
        const int down = row + from.top, across = column + from.left;
        const bool there = from.image >= 0 && from.image < shape.images;
        const bool inside = there && down >= 0 && down < shape.height && across >= 0 && across < shape.width;
        const Size place_of_byte = Size(down) * shape.width + across;
        const u8 *bytes = pixels + Size(from.image) * pixels_of_plane * shape.channels +
                          (last.bytes ? place_of_byte * shape.channels : place_of_byte);
        const Size step = last.bytes ? 1 : pixels_of_plane;
        for (int c = 0; c < shape.channels; ++c) {
            const float byte = inside ? float(bytes[c * step]) : 0.0f;
            const float value = (byte / 255.0f - by.mean[c]) / by.std[c];
            y[last.maps ? at * shape.channels + c : (sample * shape.channels + c) * plane + place] =
                narrow<Y>(there ? value : NAN_F32);
        }
    });
}

#define IMAGES(S, Y)                                                                                                         \
    KERNEL(images_##S, 256, const u8 *pixels, const Place *places, Y *y, Images shape, Channels by, Last last, Size count) { \
        images(pixels, places, y, shape, by, last, count);                                                                   \
    }
FOR_F32(IMAGES(f32, float))
FOR_BF16(IMAGES(bf16, bf16))
FOR_F16(IMAGES(f16, f16))

// Row n of `from` becomes row rows[n] of `to`, which has so many; rows that are not there are left out.
KERNEL(put_rows, 256, u8 *to, u32 rows_there, const u8 *from, const u32 *rows, Size width, Size count) {
    each<1>(count, false, [&](Size at, auto) {
        const u32 row = rows[at / width];
        if (row < rows_there) to[row * width + at % width] = from[at];
    });
}
