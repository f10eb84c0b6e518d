//! The layout of framed planes.

use pulp::Simd;

use super::super::Conv2dShape;

/// The most lanes of a vector; grids have room for one vector more than they need.
const MOST_LANES: usize = 16;

/// The layout of planes in grids.
pub(super) struct Grid {
    stride: [usize; 2],
    padding: [usize; 2],
    /// Height and width of the input.
    input: [usize; 2],
    /// Height and width of the output.
    pub(super) output: [usize; 2],
    /// Elements of a grid's row, in every phase and of the output.
    pub(super) row: usize,
    /// Elements of one phase.
    pub(super) phase: usize,
    /// The place of each tap relative to the output position: the phase's start, and the distance within it.
    pub(super) taps: Vec<(usize, usize)>,
    /// The longest distance.
    pub(super) reach: usize,
}

impl Grid {
    pub(super) fn new(shape: &Conv2dShape) -> Self {
        let (stride, output) = (shape.stride, [shape.out_height(), shape.out_width()]);
        let last = |axis: usize| (shape.kernel[axis] - 1) * shape.dilation[axis] / stride[axis];
        let row = output[1] + last(1);
        let phase = (output[0] + last(0)) * row + last(1) + MOST_LANES;
        let mut taps = Vec::new();
        for ky in 0..shape.kernel[0] {
            for kx in 0..shape.kernel[1] {
                let [y, x] = [ky * shape.dilation[0], kx * shape.dilation[1]];
                let which = y % stride[0] * stride[1] + x % stride[1];
                taps.push((which * phase, y / stride[0] * row + x / stride[1]));
            }
        }
        let reach = taps.iter().map(|tap| tap.1).max().unwrap_or(0);
        let input = [shape.height, shape.width];
        Self { stride, padding: shape.padding, input, output, row, phase, taps, reach }
    }

    /// Elements of all phases.
    pub(super) fn len(&self) -> usize {
        self.phase * self.stride[0] * self.stride[1]
    }

    /// Elements of a run over the output, in whole vectors.
    pub(super) fn run<S: Simd>(&self) -> usize {
        (self.output[0] * self.row).next_multiple_of(S::F32_LANES)
    }

    /// Calls `f(input row, phase and row start, first column, step)` for the rows in the grid. The elements of an input row
    /// at columns `first, first + step, …` are contiguous in the phase.
    #[inline(always)]
    pub(super) fn rows(&self, mut f: impl FnMut(usize, usize, usize, usize)) {
        let [step_y, step_x] = self.stride;
        let height = self.phase.saturating_sub(MOST_LANES) / self.row;
        for y in 0..self.input[0] {
            let padded = y + self.padding[0];
            if padded / step_y >= height {
                break;
            }
            for column in 0..step_x.min(self.input[1]) {
                let x = column + self.padding[1];
                let phase = (padded % step_y * step_x + x % step_x) * self.phase;
                f(y, phase + padded / step_y * self.row + x / step_x, column, step_x);
            }
        }
    }

    /// The number of columns of an input row, from `first` in steps, that the windows reach.
    pub(super) fn reached(&self, first: usize, step: usize) -> usize {
        let there = (self.input[1] - first).div_ceil(step);
        there.min(self.row.saturating_sub((first + self.padding[1]) / step))
    }

    /// Copies a plane in. The rest of the grid must be 0.
    #[inline(always)]
    pub(super) fn enter(&self, plane: &[f32], grid: &mut [f32]) {
        let width = self.input[1];
        self.rows(|y, at, first, step| {
            let count = self.reached(first, step);
            let from = &plane[y * width + first..(y + 1) * width];
            let to = &mut grid[at..at + count];
            if step == 1 {
                to.copy_from_slice(&from[..count]);
            } else {
                to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, from)| *to = *from);
            }
        });
    }

    /// Copies a plane out; elements that no window reaches become 0.
    #[inline(always)]
    pub(super) fn leave(&self, grid: &[f32], plane: &mut [f32]) {
        let width = self.input[1];
        let some_unreached = (0..self.stride[1].min(width))
            .any(|first| self.reached(first, self.stride[1]) < (width - first).div_ceil(self.stride[1]));
        let height = self.phase.saturating_sub(MOST_LANES) / self.row * self.stride[0];
        if some_unreached || self.input[0] + self.padding[0] > height {
            plane.fill(0.0);
        }
        self.rows(|y, at, first, step| {
            let count = self.reached(first, step);
            let to = &mut plane[y * width + first..(y + 1) * width];
            let from = &grid[at..at + count];
            if step == 1 {
                to[..count].copy_from_slice(from);
            } else {
                to.iter_mut().step_by(step).zip(from).for_each(|(to, from)| *to = *from);
            }
        });
    }

    /// Copies an output plane to rows of the grid's length; the columns between must be 0.
    #[inline(always)]
    pub(super) fn spread(&self, plane: &[f32], rows: &mut [f32]) {
        for (from, to) in plane.chunks_exact(self.output[1]).zip(rows.chunks_mut(self.row)) {
            to[..self.output[1]].copy_from_slice(from);
        }
    }
}
