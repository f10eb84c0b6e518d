//! The portion of a parameter that a rank holds where layers are cut over ranks.

use std::ops::Range;

use candle_core::{Shape, Tensor};

use crate::{Result, TensorError};

/// Ranges of one dimension of a parameter, with all of the other dimensions.
///
/// The ranges ascend; those that touch are joined. There may be several: of a projection to queries, keys and values a rank
/// holds the rows of its heads in each third. No portion is padded, so that ranks may hold different numbers of rows.
///
/// ```
/// use phalanx_tensor::Portion;
///
/// # fn main() -> Result<(), phalanx_tensor::TensorError> {
/// let second_of_two = Portion::new((6, 4), 0, vec![1..2, 3..4, 5..6])?;
/// assert_eq!(second_of_two.shape().dims(), [3, 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portion {
    whole: Shape,
    dim: usize,
    kept: Vec<Range<usize>>,
    /// The number of ranges before those that touch were joined.
    parts: usize,
}

/// Some elements of a portion that are a range or a box of the whole parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortionPiece {
    /// The elements of the portion, in order.
    pub elements: Vec<Range<usize>>,
    /// Their places in the whole parameter.
    pub whole: WholeElements,
}

/// Some elements of a whole parameter, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WholeElements {
    /// A range of elements in a row.
    Row(Range<usize>),
    /// The elements whose index lies in a range of every dimension.
    Box(Vec<Range<usize>>),
}

impl Portion {
    /// Makes a portion of a parameter of shape `whole` from ranges of dimension `dim`. Ranges that touch are joined.
    ///
    /// # Errors
    /// [`TensorError::Shape`] if there is no such dimension, or the ranges are empty, do not ascend or leave the dimension.
    pub fn new(whole: impl Into<Shape>, dim: usize, kept: Vec<Range<usize>>) -> Result<Self> {
        let whole = whole.into();
        let size = whole.dims().get(dim).copied().unwrap_or(0);
        let ascend = kept.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let inside = kept.iter().all(|range| range.start < range.end && range.end <= size);
        if !ascend || !inside || kept.is_empty() {
            let problem = format!("{kept:?} are no ascending ranges of dimension {dim} of {whole:?}");
            return Err(TensorError::shape("portion", problem));
        }
        let parts = kept.len();
        let mut joined: Vec<Range<usize>> = Vec::with_capacity(parts);
        for range in kept {
            match joined.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => joined.push(range),
            }
        }
        Ok(Self { whole, dim, kept: joined, parts })
    }

    /// The shape of the whole parameter.
    pub fn whole(&self) -> &Shape {
        &self.whole
    }

    /// The dimension that is cut.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The ranges of the dimension that is cut.
    pub fn kept(&self) -> &[Range<usize>] {
        &self.kept
    }

    /// The number of things that lie one after the other along the dimension and of each of which this is a part: one for each range
    /// that the portion was made from.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Returns the shape of the portion.
    pub fn shape(&self) -> Shape {
        let mut dims = self.whole.dims().to_vec();
        dims[self.dim] = self.width();
        dims.into()
    }

    /// The size of the portion along the dimension that is cut.
    fn width(&self) -> usize {
        self.kept.iter().map(Range::len).sum()
    }

    /// Copies the portion out of a whole parameter.
    ///
    /// # Errors
    /// If the tensor has another shape than the whole parameter.
    pub fn cut(&self, whole: &Tensor) -> Result<Tensor> {
        if *whole.shape() != self.whole {
            return Err(TensorError::unequal("portion", &self.whole, whole.shape()));
        }
        let parts = self.kept.iter().map(|range| whole.narrow(self.dim, range.start, range.len()));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        Ok(Tensor::cat(&parts, self.dim)?)
    }

    /// Returns, for elements `part` of the portion in order, the ranges of the whole parameter that they lie in.
    pub(crate) fn rows(&self, part: Range<usize>) -> Vec<Range<usize>> {
        let inner: usize = self.whole.dims()[self.dim + 1..].iter().product();
        let (own, all) = (self.width() * inner, self.whole.dims()[self.dim] * inner);
        let mut rows = Vec::new();
        let mut at = part.start;
        while at < part.end {
            let (outer, within) = (at / own, at % own);
            let (first, len) = self.run(within / inner);
            let skipped = within % inner;
            let start = outer * all + first * inner + skipped;
            let count = (len * inner - skipped).min(part.end - at);
            rows.push(start..start + count);
            at += count;
        }
        rows
    }

    /// Returns the index in the whole dimension of index `own` of the portion, and how many of the portion follow it without a
    /// gap, itself included.
    fn run(&self, own: usize) -> (usize, usize) {
        let mut before = 0;
        for range in &self.kept {
            if own < before + range.len() {
                let skipped = own - before;
                return (range.start + skipped, range.len() - skipped);
            }
            before += range.len();
        }
        (0, 0)
    }

    /// Splits elements `part` of the portion into pieces that are a range or a box of the whole parameter.
    pub fn pieces(&self, part: Range<usize>) -> Vec<PortionPiece> {
        let dims = self.whole.dims();
        let inner: usize = dims[self.dim + 1..].iter().product();
        let own = self.width() * inner;
        let outer: usize = dims[..self.dim].iter().product();
        // One range of each index of the dimensions before: a box needs that there is at most one of them.
        let (first, last) = (part.start.div_ceil(own.max(1)), part.end / own.max(1));
        if self.dim > 1 || outer == 1 || first + 1 >= last {
            return self.in_rows(part);
        }
        let mut pieces = self.in_rows(part.start..first * own);
        let mut before = 0;
        for range in &self.kept {
            let len = range.len() * inner;
            let start = move |row: usize| row * own + before;
            let elements = (first..last).map(|row| start(row)..start(row) + len).collect();
            let mut whole: Vec<Range<usize>> = dims.iter().map(|size| 0..*size).collect();
            (whole[0], whole[self.dim]) = (first..last, range.clone());
            pieces.push(PortionPiece { elements, whole: WholeElements::Box(whole) });
            before += len;
        }
        pieces.extend(self.in_rows(last * own..part.end));
        pieces
    }

    /// Returns a piece for each range of the whole parameter that elements `part` of the portion lie in.
    fn in_rows(&self, part: Range<usize>) -> Vec<PortionPiece> {
        let mut at = part.start;
        let rows = self.rows(part).into_iter().map(|row| {
            let elements = at..at + row.len();
            at = elements.end;
            PortionPiece { elements: vec![elements], whole: WholeElements::Row(row) }
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// The whole parameter, whose elements are their positions.
    fn positions(shape: &Shape) -> Tensor {
        let count = shape.elem_count() as u32;
        Tensor::arange(0, count, &Device::Cpu).and_then(|all| all.reshape(shape)).expect("small")
    }

    fn numbers(tensor: &Tensor) -> Vec<usize> {
        let flat = tensor.flatten_all().and_then(|flat| flat.to_vec1::<u32>()).expect("u32");
        flat.into_iter().map(|number| number as usize).collect()
    }

    #[test]
    fn rows_and_pieces_are_the_elements_that_are_cut_out() {
        for (dims, dim, kept) in [
            (vec![6, 4], 0, &[[1, 2], [3, 4], [5, 6]][..]),
            (vec![3, 6], 1, &[[0, 1], [2, 3], [4, 6]]),
            (vec![5, 4, 2], 1, &[[1, 3]]),
            (vec![2, 3, 4], 2, &[[0, 1], [3, 4]]),
            (vec![7], 0, &[[2, 5]]),
        ] {
            let whole = Shape::from(dims);
            let kept = kept.iter().map(|[start, end]| *start..*end).collect();
            let portion = Portion::new(whole.clone(), dim, kept).expect("ranges");
            let cut = portion.cut(&positions(&whole)).expect("the whole");
            assert_eq!(*cut.shape(), portion.shape());
            let expected = numbers(&cut);
            for start in 0..expected.len() {
                for end in start..=expected.len() {
                    let rows: Vec<usize> = portion.rows(start..end).into_iter().flatten().collect();
                    assert_eq!(rows, expected[start..end], "{portion:?} {start}..{end}");
                    let mut found = vec![usize::MAX; expected.len()];
                    for PortionPiece { elements, whole: of } in portion.pieces(start..end) {
                        let there = match of {
                            WholeElements::Row(row) => row.collect::<Vec<_>>(),
                            WholeElements::Box(ranges) => {
                                let part = ranges
                                    .iter()
                                    .enumerate()
                                    .try_fold(positions(&whole), |part, (dim, range)| {
                                        part.narrow(dim, range.start, range.len())
                                    });
                                numbers(&part.expect("inside"))
                            }
                        };
                        let own: Vec<usize> = elements.into_iter().flatten().collect();
                        assert_eq!(own.len(), there.len());
                        own.into_iter().zip(there).for_each(|(own, there)| found[own] = there);
                    }
                    assert_eq!(found[start..end], expected[start..end], "{portion:?} {start}..{end}");
                    assert!(found[..start].iter().chain(&found[end..]).all(|other| *other == usize::MAX));
                }
            }
        }
    }

    #[test]
    fn whole_rows_are_few_pieces() {
        let portion = Portion::new((100, 30), 1, vec![0..5, 10..15, 20..25]).expect("ranges");
        assert_eq!(portion.pieces(0..1500).len(), 3, "a box for each range");
        assert_eq!(portion.pieces(7..1493).len(), 3 + 2 + 2, "and the parts of the first and the last row");
        let rows = Portion::new((100, 30), 0, vec![10..15, 15..20]).expect("ranges");
        assert_eq!(rows.pieces(0..300).len(), 1);
    }

    #[test]
    fn ranges_that_are_none_are_refused() {
        for kept in [vec![], vec![1..2, 2..2], vec![3..4, 1..2], vec![0..2, 1..3], vec![4..5, 5..7]] {
            let error = Portion::new((6, 2), 0, kept.clone()).expect_err("wrong").to_string();
            assert!(error.contains("no ascending ranges of dimension 0"), "{kept:?}: {error}");
        }
        assert!(Portion::new(6, 1, vec![0..1, 1..1]).is_err());
        let joined = Portion::new(6, 0, vec![0..2, 2..4]).expect("ranges");
        assert_eq!(format!("{:?}", joined.kept()), "[0..4]");
    }
}
