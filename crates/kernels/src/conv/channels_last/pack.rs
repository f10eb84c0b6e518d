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
        let transposer = Transposer::new::<S>();
        // Of a window that is mostly padding, reading the used taps alone is faster than transposing all.
        let most_used = self.taps.len() * 3 >= window;
        // The place of each tap of the window among the used ones.
        let mut places = vec![usize::MAX; window];
        self.taps.iter().enumerate().for_each(|(place, &tap)| places[tap] = place);
        for lane in (0..self.width).step_by(SIDE) {
            let lanes = SIDE.min(self.width - lane);
            let full = lanes == SIDE && self.first + lane + SIDE <= outputs;
            if full && !most_used {
                self.by_taps(transposer, lane);
            } else if full && per_input == window {
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
    /// One tap at a time: 16 outputs by 16 inputs are collected and transposed.
    #[inline(always)]
    fn by_taps(&mut self, transposer: Transposer, lane: usize) {
        let Weights { values, per_output, per_input, .. } = self.weights;
        let (output, inputs) = (self.first + lane, self.channels[1]);
        for (place, &tap) in self.taps.iter().enumerate() {
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
                    let at = (place * inputs + input + i) * self.width + lane;
                    self.packed[at..at + SIDE].copy_from_slice(transposed);
                }
            }
        }
        self.one_by_one(lane, SIDE, inputs / SIDE * SIDE..inputs);
    }

    /// The inputs and taps of an output are contiguous: 16 outputs by 16 of those are transposed at a time.
    #[inline(always)]
    fn by_outputs(&mut self, transposer: Transposer, lane: usize, places: &[usize]) {
        let Weights { values, per_output, window, .. } = self.weights;
        let (output, inputs) = (self.first + lane, self.channels[1]);
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
                    let at = (places[tap] * inputs + input) * self.width + lane;
                    self.packed[at..at + SIDE].copy_from_slice(transposed);
                }
                tap += 1;
                if tap == window {
                    (tap, input) = (0, input + 1);
                }
            }
        }
        self.one_by_one(lane, SIDE, (columns / SIDE * SIDE / window)..inputs);
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
