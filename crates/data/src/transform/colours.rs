//! Operations on the colours of 8-bit images, with the arithmetic of Pillow's `ImageEnhance` and `ImageOps`, to the bit.

use image::RgbImage;

/// A table of the 256 values of a channel.
type Table = [u8; 256];

fn table(value: impl Fn(u8) -> u8) -> Table {
    std::array::from_fn(|byte| value(byte as u8))
}

/// Replaces each byte by that of a table, which may differ by channel.
fn look_up(image: &mut RgbImage, tables: &[Table; 3]) {
    for pixel in image.as_chunks_mut::<3>().0 {
        for (byte, table) in pixel.iter_mut().zip(tables) {
            *byte = table[usize::from(*byte)];
        }
    }
}

/// Returns from + factor·(to − from) in f32, truncated and clamped: Pillow's `Image.blend`.
#[inline(always)]
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    // The cast truncates and clamps.
    (f32::from(from) + factor * (f32::from(to) - f32::from(from))) as u8
}

/// Returns the luma of a pixel (ITU-R 601-2), as Pillow's conversion to `L`.
#[inline(always)]
fn luma([red, green, blue]: [u8; 3]) -> u8 {
    ((u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000) >> 16) as u8
}

/// Multiplies all channels: 0 is black, 1 changes nothing.
pub(super) fn brightness(image: &mut RgbImage, factor: f64) {
    look_up(image, &[table(|byte| blend(0, byte, factor as f32)); 3]);
}

/// Moves all channels away from the mean luma: 0 is grey, 1 changes nothing.
pub(super) fn contrast(image: &mut RgbImage, factor: f64) {
    let (pixels, _) = image.as_chunks::<3>();
    let sum: u64 = pixels.iter().map(|pixel| u64::from(luma(*pixel))).sum();
    let mean = (sum as f64 / pixels.len().max(1) as f64 + 0.5) as u8;
    look_up(image, &[table(|byte| blend(mean, byte, factor as f32)); 3]);
}

/// Moves the channels of each pixel away from its luma: 0 is grey, 1 changes nothing.
pub(super) fn saturation(image: &mut RgbImage, factor: f64) {
    let factor = factor as f32;
    for pixel in image.as_chunks_mut::<3>().0 {
        let grey = luma(*pixel);
        *pixel = pixel.map(|byte| blend(grey, byte, factor));
    }
}

/// Moves the image away from a smoothed copy: 0 is smooth, 1 changes nothing, 2 is sharp. The outermost pixels stay.
pub(super) fn sharpness(image: &mut RgbImage, factor: f64) {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let (factor, row) = (factor as f32, 3 * width);
    if width < 3 || height < 3 {
        return;
    }
    let source = image.as_raw().clone();
    let lines = source.windows(3 * row).step_by(row);
    for (out, lines) in image.chunks_exact_mut(row).skip(1).zip(lines) {
        let ([above, own], below) = ([&lines[..row], &lines[row..2 * row]], &lines[2 * row..]);
        for at in 3..row - 3 {
            let sum = |line: &[u8]| u32::from(line[at - 3]) + u32::from(line[at]) + u32::from(line[at + 3]);
            // The weights are 1, and 5 in the middle, over 13.
            let total = sum(above) + sum(own) + sum(below) + 4 * u32::from(own[at]);
            out[at] = blend(((2 * total + 13) / 26) as u8, own[at], factor);
        }
    }
}

/// Keeps the highest `bits` bits of each byte, 0 to 8.
pub(super) fn posterize(image: &mut RgbImage, bits: u32) {
    let kept = (0xff_u32 << (8 - bits.min(8))) as u8;
    image.iter_mut().for_each(|byte| *byte &= kept);
}

/// Inverts the bytes that are not below `threshold`.
pub(super) fn solarize(image: &mut RgbImage, threshold: f64) {
    look_up(image, &[table(|byte| if f64::from(byte) < threshold { byte } else { 255 - byte }); 3]);
}

/// Counts the values of each channel.
fn histograms(image: &RgbImage) -> [[u64; 256]; 3] {
    let mut counts = [[0; 256]; 3];
    for pixel in image.as_chunks::<3>().0 {
        for (byte, counts) in pixel.iter().zip(&mut counts) {
            counts[usize::from(*byte)] += 1;
        }
    }
    counts
}

/// Stretches each channel to the range from 0 to 255.
pub(super) fn autocontrast(image: &mut RgbImage) {
    let stretched = |counts: [u64; 256]| {
        let low = counts.iter().position(|count| *count > 0).unwrap_or(0);
        let high = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
        if high <= low {
            return table(|byte| byte);
        }
        let scale = 255.0 / (high - low) as f64;
        let offset = -(low as f64) * scale;
        table(|byte| (f64::from(byte) * scale + offset) as u8)
    };
    let tables = histograms(image).map(stretched);
    look_up(image, &tables);
}

/// Makes the histogram of each channel uniform.
pub(super) fn equalize(image: &mut RgbImage) {
    let equalized = |counts: [u64; 256]| {
        let last = counts.iter().rfind(|count| **count > 0).copied().unwrap_or(0);
        let step = (counts.iter().sum::<u64>() - last) / 255;
        if step == 0 {
            return table(|byte| byte);
        }
        let mut sum = step / 2;
        counts.map(|count| {
            let value = (sum / step).min(255) as u8;
            sum += count;
            value
        })
    };
    let tables = histograms(image).map(equalized);
    look_up(image, &tables);
}

/// Turns the hue of all pixels by `turn` of the circle, −0.5 to 0.5, through Pillow's 8-bit HSV.
pub(super) fn hue(image: &mut RgbImage, turn: f64) {
    let shift = (turn * 255.0) as i32 as u8;
    for pixel in image.as_chunks_mut::<3>().0 {
        let [hue, saturation, value] = to_hsv(*pixel);
        *pixel = from_hsv([hue.wrapping_add(shift), saturation, value]);
    }
}

/// Converts a pixel to hue, saturation and value of 8 bits, as Pillow does.
fn to_hsv([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let (high, low) = (red.max(green).max(blue), red.min(green).min(blue));
    if high == low {
        return [0, 0, high];
    }
    let range = f32::from(high - low);
    let saturation = range / f32::from(high);
    let [r, g, b] = [red, green, blue].map(|byte| f32::from(high - byte) / range);
    let sector = if red == high {
        b - g
    } else if green == high {
        (2.0 + f64::from(r) - f64::from(b)) as f32
    } else {
        (4.0 + f64::from(g) - f64::from(r)) as f32
    };
    let hue = (f64::from(sector) / 6.0 + 1.0) % 1.0;
    [(f64::from(hue as f32) * 255.0) as u8, (f64::from(saturation) * 255.0) as u8, high]
}

/// Converts hue, saturation and value of 8 bits to a pixel, as Pillow does.
fn from_hsv([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    if saturation == 0 {
        return [value; 3];
    }
    // Each product has the type that it has in C.
    let sector = (f64::from(hue) * 6.0 / 255.0) as f32;
    let saturation = (f64::from(saturation) / 255.0) as f32;
    let part = sector - sector.floor();
    let scaled = |by: f64| (f64::from(value) * by).round() as u8;
    let p = scaled(1.0 - f64::from(saturation));
    let q = scaled(1.0 - f64::from(saturation * part));
    let t = scaled(1.0 - f64::from(saturation) * (1.0 - f64::from(part)));
    match sector as u32 % 6 {
        0 => [value, t, p],
        1 => [q, value, p],
        2 => [p, value, t],
        3 => [p, q, value],
        4 => [t, p, value],
        _ => [value, p, q],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    #[test]
    fn neutral_factors_change_nothing() {
        let image = RgbImage::from_fn(9, 7, |x, y| Rgb([(x * 28) as u8, (y * 36) as u8, (x * y * 5) as u8]));
        let ops: [fn(&mut RgbImage); 6] = [
            |image| brightness(image, 1.0),
            |image| contrast(image, 1.0),
            |image| saturation(image, 1.0),
            |image| sharpness(image, 1.0),
            |image| posterize(image, 8),
            |image| solarize(image, 256.0),
        ];
        for (at, op) in ops.into_iter().enumerate() {
            let mut changed = image.clone();
            op(&mut changed);
            assert_eq!(changed, image, "{at}");
        }
    }

    #[test]
    fn images_of_one_colour_and_without_pixels_are_fine() {
        for (width, height) in [(1, 1), (2, 5), (0, 0)] {
            let mut image = RgbImage::from_pixel(width, height, Rgb([7, 7, 7]));
            autocontrast(&mut image);
            equalize(&mut image);
            sharpness(&mut image, 1.9);
            contrast(&mut image, 1.9);
            hue(&mut image, 0.3);
            assert!(image.pixels().all(|pixel| pixel.0 == [7; 3]), "{width} × {height}");
        }
    }
}
