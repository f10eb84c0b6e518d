//! Weights in the order in which tiles read them.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::transpose::{SIDE, Transposer};

/// The weights in their own layout: (output, input, tap) is at `output·per_output + input·per_input + tap`.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) per_output: usize,
    pub(crate) per_input: usize,
    /// Taps of the window, used or not.
    pub(crate) window: usize,
}

/// Copies the weights of the outputs from `first` on to [tap, input, output], `width` outputs wide. Missing outputs get
/// zeros.
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
    fn with_simd<S: Simd>(mut self, _: S) {
        let Weights { per_output, per_input, window, .. } = self.weights;
        let [outputs, inputs] = self.channels;
        if self.taps.is_empty() {
            return;
        }
        let transposer = Transposer::new::<S>();
        // The place of each tap of the window among the used ones.
        let mut places = vec![usize::MAX; window];
        self.taps.iter().enumerate().for_each(|(place, &tap)| places[tap] = place);
        for lane in (0..self.width).step_by(SIDE) {
            let lanes = SIDE.min(self.width - lane);
            let full = lanes == SIDE && self.first + lane + SIDE <= outputs;
            if full && per_input == window {
                self.by_outputs(transposer, lane, &places);
            } else if full && window == 1 && per_output == 1 {
                self.copy_rows(lane);
            } else if full && per_output == window && window <= SIDE {
                self.by_inputs(transposer, lane);
            } else {
                self.one_by_one(lane, lanes, 0..inputs);
            }
        }
    }
}

impl PackPanel<'_> {
    /// The inputs and taps of an output are contiguous: 16 outputs by 16 of those are transposed at a time. Few instructions
    /// between squares let the CPU read the next square, often from memory, while it writes this one.
    #[inline(always)]
    fn by_outputs(&mut self, transposer: Transposer, lane: usize, places: &[usize]) {
        let Weights { values, per_output, window, .. } = self.weights;
        let (output, inputs) = (self.first + lane, self.channels[1]);
        let squares = inputs * window / SIDE;
        let mut rows: [&[[f32; SIDE]]; SIDE] = [&[]; SIDE];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = &values[(output + i) * per_output..][..squares * SIDE].as_chunks().0[..squares];
        }
        let (mut input, mut tap) = (0, 0);
        for square in 0..squares {
            let mut lines = [&[0.0; SIDE]; SIDE];
            for (line, row) in lines.iter_mut().zip(&rows) {
                *line = &row[square];
            }
            for transposed in &transposer.transpose(lines) {
                if places[tap] != usize::MAX {
                    let at = (places[tap] * inputs + input) * self.width + lane;
                    self.packed[at..at + SIDE].copy_from_slice(transposed);
                }
                tap += 1;
                if tap == window {
                    (tap, input) = (0, input + 1);
                }
            }
        }
        self.one_by_one(lane, SIDE, (squares * SIDE / window)..inputs);
    }

    /// The outputs of an input are contiguous and in order.
    #[inline(always)]
    fn copy_rows(&mut self, lane: usize) {
        let Weights { values, per_input, .. } = self.weights;
        for input in 0..self.channels[1] {
            let from = &values[input * per_input + self.first + lane..][..SIDE];
            self.packed[input * self.width + lane..][..SIDE].copy_from_slice(from);
        }
    }

    /// The outputs and taps of an input are contiguous: the taps of 16 outputs are transposed at a time.
    #[inline(always)]
    fn by_inputs(&mut self, transposer: Transposer, lane: usize) {
        let Weights { values, per_input, window, .. } = self.weights;
        let (output, inputs) = (self.first + lane, self.channels[1]);
        for input in 0..inputs {
            let start = input * per_input + output * window;
            if start + (SIDE - 1) * window + SIDE > values.len() {
                self.one_by_one(lane, SIDE, input..input + 1);
                continue;
            }
            let mut lines = [&[0.0; SIDE]; SIDE];
            for (i, line) in lines.iter_mut().enumerate() {
                let start = start + i * window;
                *line = values[start..start + SIDE].try_into().unwrap_or(line);
            }
            let transposed = transposer.transpose(lines);
            for (place, &tap) in self.taps.iter().enumerate() {
                let at = (place * inputs + input) * self.width + lane;
                self.packed[at..at + SIDE].copy_from_slice(&transposed[tap]);
            }
        }
    }

    /// Copies single weights of `lanes` outputs and some inputs, which fill no square.
    fn one_by_one(&mut self, lane: usize, lanes: usize, inputs: Range<usize>) {
        let Weights { values, per_output, per_input, .. } = self.weights;
        let output = self.first + lane;
        for input in inputs {
            for (place, tap) in self.taps.iter().enumerate() {
                let at = (place * self.channels[1] + input) * self.width + lane;
                for (offset, to) in self.packed[at..at + lanes].iter_mut().enumerate() {
                    let from = (output + offset) * per_output + input * per_input + tap;
                    *to = if output + offset < self.channels[0] { values[from] } else { 0.0 };
                }
            }
        }
    }
}
