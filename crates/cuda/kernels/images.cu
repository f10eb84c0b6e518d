// Conversion of byte images to normalised maps: lookup, crop, flip, and (byte / 255 − mean) / std in one pass.

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
// The source of a map: the image, its first row and column (negative inside a black border), and 1 for a horizontal flip.
struct Crop {
    int image, top, left, flipped;
};

// Map n comes from places[n], or is all of image n without places. An index beyond the images gives NaN.
template <class Y>
DEVICE void images(const u8 *pixels, const Crop *places, Y *y, const Images &shape, const Channels &by, const Last &last, Size count) {
    const int plane = shape.out_height * shape.out_width;
    const Size pixels_of_plane = Size(shape.height) * shape.width;
    // A thread for each pixel, so that its bytes are read once.
    each<1>(count, false, [&](Size at, auto) {
        const Size sample = at / plane;
        const int place = int(at - sample * plane), row = place / shape.out_width;
        int column = place % shape.out_width;
        Crop from = {int(sample), 0, 0, 0};
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
    KERNEL(images_##S, 256, const u8 *pixels, const Crop *places, Y *y, Images shape, Channels by, Last last, Size count) {  \
        images(pixels, places, y, shape, by, last, count);                                                                   \
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
