//! Kernels of rows of f32 numbers that are stored in f32 or in 16 bits.
//!
//! Whole arrays that are widened before a kernel, and rounded behind it, pass through memory three times. Here a piece of some rows is
//! widened, computed and rounded while it stays in the cache.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};

use crate::context::Context;
use crate::error::{KernelError, Result, check_len};
use crate::half::Half as _;

/// Elements of all arrays of a piece, in f32: they fit the second-level cache.
const PIECE: usize = 1 << 15;

/// Numbers as they are stored.
#[derive(Debug, Clone, Copy)]
pub enum Stored<'a> {
    /// In f32.
    F32(&'a [f32]),
    /// In bf16.
    Bf16(&'a [bf16]),
    /// In f16.
    F16(&'a [f16]),
}

impl<'a> Stored<'a> {
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::F16(values) => values.len(),
        }
    }

    /// The elements, if they are f32.
    fn singles(self) -> Option<&'a [f32]> {
        match self {
            Self::F32(values) => Some(values),
            Self::Bf16(_) | Self::F16(_) => None,
        }
    }

    /// Returns the elements of a range in f32, in `room` if they are stored otherwise.
    fn read<'r>(&self, context: &Context, range: Range<usize>, room: &'r mut [f32]) -> &'r [f32]
    where
        'a: 'r,
    {
        match self {
            Self::F32(values) => return &values[range],
            Self::Bf16(values) => bf16::widen_slice(context.arch(), &values[range], room),
            Self::F16(values) => f16::widen_slice(context.arch(), &values[range], room),
        }
        room
    }
}

/// The place of numbers, which are rounded if it has 16 bits.
#[derive(Debug)]
pub enum StoredMut<'a> {
    /// In f32.
    F32(&'a mut [f32]),
    /// In bf16.
    Bf16(&'a mut [bf16]),
    /// In f16.
    F16(&'a mut [f16]),
}

impl<'a> StoredMut<'a> {
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
            Self::F16(values) => values.len(),
        }
    }

    /// The elements, if they are f32.
    fn singles(&mut self) -> Option<&mut [f32]> {
        match self {
            Self::F32(values) => Some(values),
            Self::Bf16(_) | Self::F16(_) => None,
        }
    }

    /// Takes the first elements off.
    fn take(&mut self, len: usize) -> Self {
        match self {
            Self::F32(values) => Self::F32(values.split_off_mut(..len).unwrap_or_default()),
            Self::Bf16(values) => Self::Bf16(values.split_off_mut(..len).unwrap_or_default()),
            Self::F16(values) => Self::F16(values.split_off_mut(..len).unwrap_or_default()),
        }
    }

    /// Returns where the numbers are computed: in their place, or in `room`.
    fn target<'r>(&'r mut self, room: &'r mut [f32]) -> &'r mut [f32] {
        match self {
            Self::F32(values) => values,
            _ => room,
        }
    }

    /// Rounds the numbers computed in `room` to their place.
    fn round(&mut self, context: &Context, room: &[f32]) {
        match self {
            Self::F32(_) => {}
            Self::Bf16(values) => bf16::round_slice(context.arch(), room, values),
            Self::F16(values) => f16::round_slice(context.arch(), room, values),
        }
    }
}

/// Runs `kernel` on all rows of some arrays, each of which has `count` rows. It gets a context for its threads, the rows, the rows'
/// elements of the inputs, and the places of those of the outputs, all of which it must write. A row's result must not depend on other
/// rows.
///
/// If all numbers are f32, it is called once, for all rows.
///
/// # Errors
/// If an array does not have whole rows, or those of `kernel`.
pub fn by_rows<const I: usize, const O: usize, E: From<KernelError> + Send>(
    context: &Context,
    count: usize,
    inputs: [Stored<'_>; I],
    outputs: [StoredMut<'_>; O],
    kernel: impl Fn(&Context, Range<usize>, [&[f32]; I], [&mut [f32]; O]) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let kernel = |context: &Context, rows, inputs: [&[f32]; I], outputs: [&mut [f32]; O], _: &mut [f32]| {
        kernel(context, rows, inputs, outputs)
    };
    by_rows_with_sums(context, count, inputs, outputs, &mut [], kernel)
}

/// Does what [`by_rows`] does, and adds up `sums` over all rows: `kernel` writes the sums over its rows to its last argument.
///
/// # Errors
/// Errors of [`by_rows`].
pub fn by_rows_with_sums<const I: usize, const O: usize, E: From<KernelError> + Send>(
    context: &Context,
    count: usize,
    inputs: [Stored<'_>; I],
    mut outputs: [StoredMut<'_>; O],
    sums: &mut [f32],
    kernel: impl Fn(&Context, Range<usize>, [&[f32]; I], [&mut [f32]; O], &mut [f32]) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let lens = [inputs.each_ref().map(Stored::len).to_vec(), outputs.each_ref().map(StoredMut::len).to_vec()];
    for len in lens.iter().flatten() {
        check_len("by_rows", "an array", len.checked_div(count).unwrap_or(0) * count, *len)?;
    }
    sums.fill(0.0);
    if count == 0 {
        return Ok(());
    }
    if let (Some(inputs), Some(outputs)) =
        (all(inputs.map(Stored::singles)), all(outputs.each_mut().map(StoredMut::singles)))
    {
        return kernel(context, 0..count, inputs, outputs, sums);
    }
    let work = Work {
        context,
        serial: context.on_this_thread(),
        inputs,
        widths: inputs.map(|input| input.len() / count),
        kernel,
        failure: Mutex::new(None),
    };
    let out_widths = outputs.each_ref().map(|output| output.len() / count);
    let width = work.widths.iter().chain(&out_widths).sum::<usize>();
    let rows = (PIECE / width.max(1)).max(1);
    let mut of_pieces = vec![0.0; sums.len() * count.div_ceil(rows)];
    let mut rest = &mut of_pieces[..];
    let pieces = (0..count).step_by(rows).map(|first| {
        let rows = first..(first + rows).min(count);
        let sums = rest.split_off_mut(..sums.len()).unwrap_or_default();
        let mut at = 0..O;
        let outputs =
            outputs.each_mut().map(|output| output.take(rows.len() * out_widths[at.next().unwrap_or(0)]));
        Piece { rows, outputs, sums }
    });
    context.run_each(pieces.collect(), |piece: Piece<'_, O>| {
        context.with_scratch(rows * width, |room: &mut [f32]| work.run(piece, room));
    });
    for of_piece in of_pieces.chunks(sums.len().max(1)) {
        sums.iter_mut().zip(of_piece).for_each(|(sum, part)| *sum += *part);
    }
    work.failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Returns all values, if there are all.
fn all<T, const N: usize>(values: [Option<T>; N]) -> Option<[T; N]> {
    let values: Option<Vec<T>> = values.into_iter().collect();
    values?.try_into().ok()
}

/// Some rows of the outputs.
struct Piece<'a, const O: usize> {
    rows: Range<usize>,
    outputs: [StoredMut<'a>; O],
    /// The sums over the rows.
    sums: &'a mut [f32],
}

/// The work on each piece.
struct Work<'a, const I: usize, K, E> {
    context: &'a Context,
    serial: Context,
    inputs: [Stored<'a>; I],
    /// Elements of a row of each input.
    widths: [usize; I],
    kernel: K,
    failure: Mutex<Option<E>>,
}

impl<const I: usize, K, E> Work<'_, I, K, E> {
    /// Computes a piece, with room for all its numbers.
    fn run<const O: usize>(&self, mut piece: Piece<'_, O>, mut room: &mut [f32])
    where
        K: Fn(&Context, Range<usize>, [&[f32]; I], [&mut [f32]; O], &mut [f32]) -> Result<(), E>,
    {
        let rows = piece.rows.clone();
        let mut at = 0..I;
        let inputs = self.inputs.map(|input| {
            let width = self.widths[at.next().unwrap_or(0)];
            let room = room.split_off_mut(..rows.len() * width).unwrap_or_default();
            input.read(self.context, rows.start * width..rows.end * width, room)
        });
        let mut rooms =
            piece.outputs.each_ref().map(|output| room.split_off_mut(..output.len()).unwrap_or_default());
        let mut to = piece.outputs.iter_mut().zip(&mut rooms);
        let targets = std::array::from_fn(|_| match to.next() {
            Some((output, room)) => output.target(room),
            None => &mut [],
        });
        if let Err(error) = (self.kernel)(&self.serial, rows, inputs, targets, piece.sums) {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
        for (output, room) in piece.outputs.iter_mut().zip(&rooms) {
            output.round(self.context, room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds each row's sum to the product of its two inputs, and returns the sums too.
    fn sums(_: &Context, _: Range<usize>, [a, b]: [&[f32]; 2], [y, sums]: [&mut [f32]; 2]) -> Result<()> {
        for (((a, b), y), sum) in a.chunks(3).zip(b).zip(y.chunks_mut(3)).zip(sums) {
            *sum = a.iter().sum();
            for (y, a) in y.iter_mut().zip(a) {
                *y = *a * *b + *sum;
            }
        }
        Ok(())
    }

    #[test]
    fn stored_rows_have_the_results_of_widened_ones() {
        const COUNT: usize = 40_003;
        let a: Vec<bf16> = (0..3 * COUNT).map(|i| bf16::from_f32((i % 701) as f32 * 0.37 - 90.0)).collect();
        let b: Vec<f16> = (0..COUNT).map(|i| f16::from_f32((i % 91) as f32 * 0.11 - 4.0)).collect();
        let wide_a: Vec<f32> = a.iter().map(|value| value.to_f32()).collect();
        let wide_b: Vec<f32> = b.iter().map(|value| value.to_f32()).collect();
        let mut expected = [vec![0.0f32; 3 * COUNT], vec![0.0f32; COUNT]];
        let [y, of_rows] = &mut expected;
        sums(&Context::new(1), 0..COUNT, [&wide_a, &wide_b], [y, of_rows]).expect("sums");
        for threads in [1, 3] {
            let context = Context::new(threads);
            let (mut y, mut of_rows) = (vec![bf16::ZERO; 3 * COUNT], vec![0.0f32; COUNT]);
            let outputs = [StoredMut::Bf16(&mut y), StoredMut::F32(&mut of_rows)];
            by_rows(&context, COUNT, [Stored::Bf16(&a), Stored::F16(&b)], outputs, sums).expect("whole rows");
            assert_eq!(of_rows, expected[1]);
            assert!(y.iter().zip(&expected[0]).all(|(y, expected)| *y == bf16::from_f32(*expected)));
            let (mut y, mut of_rows) = (vec![f16::ZERO; 3 * COUNT], vec![bf16::ZERO; COUNT]);
            let outputs = [StoredMut::F16(&mut y), StoredMut::Bf16(&mut of_rows)];
            by_rows(&context, COUNT, [Stored::F32(&wide_a), Stored::F32(&wide_b)], outputs, sums)
                .expect("rows");
            assert!(y.iter().zip(&expected[0]).all(|(y, expected)| *y == f16::from_f32(*expected)));
            assert!(of_rows.iter().zip(&expected[1]).all(|(y, expected)| *y == bf16::from_f32(*expected)));
            let mut plain = [vec![0.0f32; 3 * COUNT], vec![0.0f32; COUNT]];
            let outputs = plain.each_mut().map(|output| StoredMut::F32(output));
            by_rows(&context, COUNT, [Stored::F32(&wide_a), Stored::F32(&wide_b)], outputs, sums)
                .expect("rows");
            assert_eq!(plain, expected);
        }
    }

    #[test]
    fn sums_are_added_up_over_pieces_and_do_not_depend_on_threads() {
        const COUNT: usize = 50_001;
        let a: Vec<bf16> = (0..2 * COUNT).map(|i| bf16::from_f32((i % 97) as f32 * 0.21 - 10.0)).collect();
        let of_columns =
            |_: &Context, _: Range<usize>, [a]: [&[f32]; 1], [y]: [&mut [f32]; 1], sums: &mut [f32]| {
                y.copy_from_slice(a);
                a.chunks(2).for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, a)| *sum += a));
                Ok::<(), KernelError>(())
            };
        let found = [1, 3].map(|threads| {
            let (mut y, mut sums) = (vec![bf16::ZERO; 2 * COUNT], [7.0; 2]);
            let outputs = [StoredMut::Bf16(&mut y)];
            by_rows_with_sums(
                &Context::new(threads),
                COUNT,
                [Stored::Bf16(&a)],
                outputs,
                &mut sums,
                of_columns,
            )
            .expect("whole rows");
            assert_eq!(y, a);
            sums
        });
        assert_eq!(found[0], found[1]);
        for (column, sum) in found[0].into_iter().enumerate() {
            let expected: f64 = a.iter().skip(column).step_by(2).map(|a| f64::from(a.to_f32())).sum();
            assert!((f64::from(sum) - expected).abs() < 1e-5 * COUNT as f64, "{sum} instead of {expected}");
        }
    }

    #[test]
    fn parts_of_rows_and_failures_are_errors() {
        let context = Context::new(2);
        let a = [bf16::ONE; 7];
        let none: [StoredMut<'_>; 0] = [];
        let nothing =
            |_: &Context, _: Range<usize>, _: [&[f32]; 1], _: [&mut [f32]; 0]| Ok::<(), KernelError>(());
        assert!(by_rows(&context, 2, [Stored::Bf16(&a)], none, nothing).is_err());
        let failing = |_: &Context, _: Range<usize>, [a]: [&[f32]; 1], _: [&mut [f32]; 0]| {
            check_len("k", "x", 0, a.len())
        };
        assert!(by_rows(&context, 7, [Stored::Bf16(&a)], [], failing).is_err());
        assert!(by_rows(&context, 0, [Stored::Bf16(&[])], [], failing).is_ok());
    }
}
