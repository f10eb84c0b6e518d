//! Weights in the order in which tiles read them.

use pulp::{Simd, WithSimd};

use crate::transpose::{SIDE, Transposer};

/// The weights as they lie: that of (output, input, tap) is at `output·per_output + input·per_input + tap`.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) per_output: usize,
    pub(crate) per_input: usize,
    /// Taps of the window, used or not.
    pub(crate) window: usize,
}

/// Copies the weights of the outputs from `first` on to [tap, input, output], `width` outputs wide. Outputs that are
/// not there get zeros.
pub(crate) struct PackPanel<'a> {
    pub(crate) weights: Weights<'a>,
    /// The taps that are used.
    pub(crate) taps: &'a [usize],
    /// Outputs and inputs.
    pub(crate) channels: [usize; 2],
    pub(crate) first: usize,
    pub(crate) width: usize,
    pub(crate) packed: &'a mut [f32],
}

impl WithSimd for PackPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { weights, taps, channels: [outputs, inputs], first, width, packed } = self;
        let Weights { values, per_output, per_input, window } = weights;
        let transposer = Transposer::new::<S>();
        // Of a window that is mostly padding, reading the used taps alone is faster than turning all.
        let most_used = taps.len() * 3 >= window;
        // Where each tap of the window goes, if it is used.
        let mut places = vec![usize::MAX; window];
        taps.iter().enumerate().for_each(|(place, &tap)| places[tap] = place);
        for lane in (0..width).step_by(SIDE) {
            let lanes = SIDE.min(width - lane);
            let output = first + lane;
            let full = lanes == SIDE && output + SIDE <= outputs;
            if full && !most_used {
                // One tap at a time: 16 outputs by 16 inputs are collected and transposed.
                for (place, &tap) in taps.iter().enumerate() {
                    for input in (0..inputs / SIDE * SIDE).step_by(SIDE) {
                        let mut square = [[0.0; SIDE]; SIDE];
                        for (i, line) in square.iter_mut().enumerate() {
                            let start = (output + i) * per_output + input * per_input + tap;
                            let from = &values[start..start + (SIDE - 1) * per_input + 1];
                            for (j, to) in line.iter_mut().enumerate() {
                                *to = from[j * per_input];
                            }
                        }
                        let mut lines = [&[0.0; SIDE]; SIDE];
                        for (line, row) in lines.iter_mut().zip(&square) {
                            *line = row;
                        }
                        for (i, transposed) in transposer.transpose(lines).iter().enumerate() {
                            let at = (place * inputs + input + i) * width + lane;
                            packed[at..at + SIDE].copy_from_slice(transposed);
                        }
                    }
                }
                let rest = inputs / SIDE * SIDE..inputs;
                let at = |place, input| (place * inputs + input) * width + lane;
                one_by_one(weights, taps, rest, output, lanes, at, outputs, packed);
                continue;
            }
            let whole = full && most_used;
            if whole && per_input == window {
                // An output's inputs and taps lie together: 16 outputs by 16 of those are transposed at a time.
                let columns = inputs * window;
                for column in (0..columns / SIDE * SIDE).step_by(SIDE) {
                    let mut lines = [&[0.0; SIDE]; SIDE];
                    for (i, line) in lines.iter_mut().enumerate() {
                        let start = (output + i) * per_output + column;
                        *line = values[start..start + SIDE].try_into().unwrap_or(line);
                    }
                    let transposed = transposer.transpose(lines);
                    let (mut input, mut tap) = (column / window, column % window);
                    for transposed in &transposed {
                        if places[tap] != usize::MAX {
                            let at = (places[tap] * inputs + input) * width + lane;
                            packed[at..at + SIDE].copy_from_slice(transposed);
                        }
                        tap += 1;
                        if tap == window {
                            (tap, input) = (0, input + 1);
                        }
                    }
                }
                one_by_one(
                    weights,
                    taps,
                    (columns / SIDE * SIDE / window)..inputs,
                    output,
                    lanes,
                    |place, input| (place * inputs + input) * width + lane,
                    outputs,
                    packed,
                );
            } else if full && window == 1 && per_output == 1 {
                // Outputs lie side by side as they should.
                for input in 0..inputs {
                    let from = &values[input * per_input + output..][..SIDE];
                    packed[input * width + lane..][..SIDE].copy_from_slice(from);
                }
            } else if whole && per_output == window && window <= SIDE {
                // An input's outputs and taps lie together: the taps of 16 outputs are transposed at a time.
                for input in 0..inputs {
                    let start = input * per_input + output * window;
                    if start + (SIDE - 1) * window + SIDE > values.len() {
                        one_by_one(
                            weights,
                            taps,
                            input..input + 1,
                            output,
                            lanes,
                            |place, input| (place * inputs + input) * width + lane,
                            outputs,
                            packed,
                        );
                        continue;
                    }
                    let mut lines = [&[0.0; SIDE]; SIDE];
                    for (i, line) in lines.iter_mut().enumerate() {
                        let start = start + i * window;
                        *line = values[start..start + SIDE].try_into().unwrap_or(line);
                    }
                    let transposed = transposer.transpose(lines);
                    for (place, &tap) in taps.iter().enumerate() {
                        let at = (place * inputs + input) * width + lane;
                        packed[at..at + SIDE].copy_from_slice(&transposed[tap]);
                    }
                }
            } else {
                one_by_one(
                    weights,
                    taps,
                    0..inputs,
                    output,
                    lanes,
                    |place, input| (place * inputs + input) * width + lane,
                    outputs,
                    packed,
                );
            }
        }
    }
}

/// The slow way, for what fills no square: `lanes` outputs from `output` on, of some inputs.
fn one_by_one(
    weights: Weights<'_>,
    taps: &[usize],
    inputs: std::ops::Range<usize>,
    output: usize,
    lanes: usize,
    at: impl Fn(usize, usize) -> usize,
    outputs: usize,
    packed: &mut [f32],
) {
    for input in inputs {
        for (place, tap) in taps.iter().enumerate() {
            let at = at(place, input);
            for (offset, to) in packed[at..at + lanes].iter_mut().enumerate() {
                let from = (output + offset) * weights.per_output + input * weights.per_input + tap;
                *to = if output + offset < outputs { weights.values[from] } else { 0.0 };
            }
        }
    }
}
