//! The places of the tiles of a map.

use super::POINTS;

/// The tiles of 4×4 results of a map, and the 6×6 pixels that each reads.
#[derive(Debug)]
pub(super) struct Tiles {
    /// Pixels of an input image. As a pixel index it denotes a pixel outside, which is zero.
    pub(super) in_plane: usize,
    /// Pixels of an output image. As a pixel index it denotes a pixel outside, which is dropped.
    pub(super) out_plane: usize,
    /// The pixels that each tile reads.
    pub(super) reads: Vec<[u32; POINTS]>,
    /// The pixels that each tile writes.
    pub(super) writes: Vec<[u32; 16]>,
}

impl Tiles {
    /// Returns the tiles of a convolution of images of `input` with `padding` to images of `output`, as [height, width].
    pub(super) fn new(input: [usize; 2], output: [usize; 2], padding: [usize; 2]) -> Self {
        let (in_plane, out_plane) = (input[0] * input[1], output[0] * output[1]);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for y in (0..output[0]).step_by(4) {
            for x in (0..output[1]).step_by(4) {
                reads.push(std::array::from_fn(|i| {
                    // A position in the padding wraps around to a number that is too large.
                    let y = (y + i / 6).wrapping_sub(padding[0]);
                    let x = (x + i % 6).wrapping_sub(padding[1]);
                    (if y < input[0] && x < input[1] { y * input[1] + x } else { in_plane }) as u32
                }));
                writes.push(std::array::from_fn(|i| {
                    let (y, x) = (y + i / 4, x + i % 4);
                    (if y < output[0] && x < output[1] { y * output[1] + x } else { out_plane }) as u32
                }));
            }
        }
        Self { in_plane, out_plane, reads, writes }
    }

    /// The number of tiles of an image.
    pub(super) fn per_image(&self) -> usize {
        self.reads.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_overlap_by_two_and_end_outside() {
        let tiles = Tiles::new([5, 8], [5, 8], [1, 1]);
        assert_eq!(tiles.per_image(), 4);
        assert_eq!(tiles.reads[0][..8], [40, 40, 40, 40, 40, 40, 40, 0]);
        assert_eq!(tiles.reads[3][6..12], [35, 36, 37, 38, 39, 40]);
        assert_eq!(tiles.writes[3], [36, 37, 38, 39, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40]);
    }
}
