//! The layout of framed planes.

use pulp::Simd;

use super::super::Conv2dShape;
use crate::vectorized::MOST_LANES;

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
    /// Elements of one phase, with room for one vector more than is needed.
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

    /// Calls `f(first element of the plane, first element of the grid, count)` for the runs of elements that are contiguous in
    /// the grid. In the plane they are a step apart.
    #[inline(always)]
    fn runs(&self, mut f: impl FnMut(usize, usize, usize)) {
        let [step_y, step_x] = self.stride;
        let height = self.phase.saturating_sub(MOST_LANES) / self.row;
        for column in 0..step_x.min(self.input[1]) {
            let count = self.reached(column, step_x);
            let x = column + self.padding[1];
            let (phase, start) = (x % step_x, x / step_x);
            let (mut phase_y, mut row) = (self.padding[0] % step_y, self.padding[0] / step_y);
            for y in 0..self.input[0] {
                if row >= height {
                    break;
                }
                let to = (phase_y * step_x + phase) * self.phase + row * self.row + start;
                f(y * self.input[1] + column, to, count);
                phase_y += 1;
                if phase_y == step_y {
                    (phase_y, row) = (0, row + 1);
                }
            }
        }
    }

    /// The number of columns of an input row, from `first` in steps, that the windows reach.
    fn reached(&self, first: usize, step: usize) -> usize {
        let there = (self.input[1] - first).div_ceil(step);
        there.min(self.row.saturating_sub((first + self.padding[1]) / step))
    }

    /// Copies a plane in. The rest of the grid must be 0.
    #[inline(always)]
    pub(super) fn enter(&self, plane: &[f32], grid: &mut [f32]) {
        let step = self.stride[1];
        self.runs(|from, to, count| {
            let to = &mut grid[to..to + count];
            if step == 1 {
                to.copy_from_slice(&plane[from..from + count]);
            } else {
                to.iter_mut().zip(plane[from..].iter().step_by(step)).for_each(|(to, from)| *to = *from);
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
        let step = self.stride[1];
        self.runs(|to, from, count| {
            let from = &grid[from..from + count];
            if step == 1 {
                plane[to..to + count].copy_from_slice(from);
            } else {
                plane[to..].iter_mut().step_by(step).zip(from).for_each(|(to, from)| *to = *from);
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
