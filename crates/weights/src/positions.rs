//! Positions of patches for images of another size.

use std::ops::Range;

use candle_core::{Device, Tensor};

/// Learned positions of a square grid of patches behind a class token, as they are in weights and as they are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResampledPositions {
    from: usize,
    to: usize,
    width: usize,
}

impl ResampledPositions {
    /// Compares two shapes [1, 1 + side², C]; `None` if they are others.
    pub(crate) fn between(found: &[usize], wanted: &[usize]) -> Option<Self> {
        let (&[1, from, width], &[1, to, wanted_width]) = (found, wanted) else { return None };
        let side = |positions: usize| {
            let side = positions.checked_sub(1)?.isqrt();
            (side > 0 && side * side + 1 == positions).then_some(side)
        };
        let (from, to) = (side(from)?, side(to)?);
        (width == wanted_width).then_some(Self { from, to, width })
    }

    /// The number of elements in the weights.
    pub(crate) fn elements(self) -> usize {
        (self.from * self.from + 1) * self.width
    }

    /// Returns elements of the wanted positions, flat: the class token as it is, and the others by cubic interpolation along both sides
    /// whose corners lie on each other, as torchvision's `interpolate_embeddings`.
    ///
    /// # Errors
    /// If `values` are not all elements of the weights.
    pub(crate) fn resample(self, values: &Tensor, range: Range<usize>) -> candle_core::Result<Tensor> {
        let dtype = values.dtype();
        let values = values.flatten_all()?.to_dtype(candle_core::DType::F64)?.to_vec1::<f64>()?;
        let Self { from, to, width } = self;
        let taps: Vec<Taps> = (0..to).map(|at| Taps::of(at, from, to)).collect();
        let mut all = values[..width].to_vec();
        for row in &taps {
            for column in &taps {
                for channel in 0..width {
                    let value =
                        |row: usize, column: usize| values[(1 + row * from + column) * width + channel];
                    let along = |row: usize| column.sum(|column| value(row, column));
                    all.push(row.sum(along));
                }
            }
        }
        Tensor::from_slice(&all[range.clone()], range.len(), &Device::Cpu)?.to_dtype(dtype)
    }
}

/// The four numbers that a number of the new grid is a mean of, along one side.
struct Taps([(usize, f64); 4]);

impl Taps {
    /// The numbers of position `at` of `to`, among `from`.
    fn of(at: usize, from: usize, to: usize) -> Self {
        /// The sharpness of the cubic that PyTorch has.
        const A: f64 = -0.75;
        let place = if to > 1 { at as f64 * (from - 1) as f64 / (to - 1) as f64 } else { 0.0 };
        let first = (place.floor() as usize).min(from - 1);
        let t = place - first as f64;
        let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
        let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
        let weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
        // Beyond an edge lies its last number.
        let index = |offset: usize| (first + offset).saturating_sub(1).min(from - 1);
        Self(std::array::from_fn(|offset| (index(offset), weights[offset])))
    }

    fn sum(&self, value: impl Fn(usize) -> f64) -> f64 {
        self.0.iter().map(|(at, weight)| weight * value(*at)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positions that differ, [1, 1 + side², width], the class token 7.
    fn positions(side: usize, width: usize) -> Tensor {
        let of = |at: usize| (at as f64 * 1.7).sin() + 0.1 * at as f64;
        let all: Vec<f64> = std::iter::repeat_n(7.0, width).chain((0..side * side * width).map(of)).collect();
        Tensor::from_vec(all, (1, side * side + 1, width), &Device::Cpu).expect("as many")
    }

    /// The numbers are of PyTorch 2.15: `interpolate(x, size, mode="bicubic", align_corners=True)`.
    #[test]
    fn grids_are_those_of_pytorch() {
        let larger = [
            0.0, 1.091665, -0.027771, 0.232925, -0.055541, -0.625815, 0.447057, 1.195076, 0.184674, 0.46155,
            -0.077708, -0.271976, 0.894113, 1.298487, 0.397119, 0.690175, -0.099875, 0.081863,
        ];
        let smaller = [0.0, 1.091665, 0.894113, 1.298487, 2.199793, 1.191363, 2.479273, 1.114363];
        let one_channel = [
            0.0, 0.87546, 0.851803, -0.055541, -0.487237, 0.587519, 1.149477, 0.832144, -0.529776, 0.15049,
            1.041637, 1.56248, -0.099875, -0.150606, 0.598613, 1.659162,
        ];
        for (from, to, width, expected) in
            [(2, 3, 2, &larger[..]), (3, 2, 2, &smaller[..]), (3, 4, 1, &one_channel[..])]
        {
            let (found, wanted) = ([1, from * from + 1, width], [1, to * to + 1, width]);
            let resampled = ResampledPositions::between(&found, &wanted).expect("grids");
            let values = positions(from, width);
            assert_eq!(resampled.elements(), values.elem_count());
            let of =
                |range| resampled.resample(&values, range).and_then(|all| all.to_vec1::<f64>()).expect("f64");
            let all = of(0..(to * to + 1) * width);
            assert!(all[..width].iter().all(|value| *value == 7.0), "the class token stays");
            let near = all[width..].iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-6);
            assert!(near && all.len() == expected.len() + width, "{from} to {to}: {all:?}");
            assert_eq!(of(3..7), all[3..7], "a part of a rank");
        }
    }

    #[test]
    fn other_shapes_are_no_grids() {
        for (found, wanted) in [
            (&[1, 17, 8][..], &[1, 65, 12][..]),
            (&[1, 18, 8], &[1, 65, 8]),
            (&[17, 8], &[65, 8]),
            (&[1, 1, 8], &[1, 17, 8]),
        ] {
            assert_eq!(ResampledPositions::between(found, wanted), None, "{found:?} {wanted:?}");
        }
    }
}
