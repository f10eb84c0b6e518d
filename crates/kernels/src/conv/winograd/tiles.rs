//! Where the tiles of a map lie.

use super::POINTS;

/// The tiles of 4×4 results of a map, and the 6×6 pixels that each reads.
#[derive(Debug)]
pub(super) struct Tiles {
    /// Pixels of an image that is read; as a pixel's number it means one outside, which is zero.
    pub(super) in_plane: usize,
    /// Pixels of an image of results; as a pixel's number it means one outside, which nobody asks for.
    pub(super) out_plane: usize,
    /// For every tile the pixels that it reads.
    pub(super) reads: Vec<[u32; POINTS]>,
    /// For every tile the pixels that it gives.
    pub(super) gives: Vec<[u32; 16]>,
}

impl Tiles {
    /// Those of images of `input` with `padding` zeros around that become images of `output` (height and width).
    pub(super) fn new(input: [usize; 2], output: [usize; 2], padding: [usize; 2]) -> Self {
        let (in_plane, out_plane) = (input[0] * input[1], output[0] * output[1]);
        let (mut reads, mut gives) = (Vec::new(), Vec::new());
        for y in (0..output[0]).step_by(4) {
            for x in (0..output[1]).step_by(4) {
                reads.push(std::array::from_fn(|i| {
                    // What the padding hides wraps around to a number that is too large.
                    let y = (y + i / 6).wrapping_sub(padding[0]);
                    let x = (x + i % 6).wrapping_sub(padding[1]);
                    (if y < input[0] && x < input[1] { y * input[1] + x } else { in_plane }) as u32
                }));
                gives.push(std::array::from_fn(|i| {
                    let (y, x) = (y + i / 4, x + i % 4);
                    (if y < output[0] && x < output[1] { y * output[1] + x } else { out_plane }) as u32
                }));
            }
        }
        Self { in_plane, out_plane, reads, gives }
    }

    /// Tiles of an image.
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
        assert_eq!(tiles.gives[3], [36, 37, 38, 39, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40]);
    }
}
