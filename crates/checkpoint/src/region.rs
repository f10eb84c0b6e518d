//! Regions of a tensor: a range of its flat elements, or a range of each dimension.

use std::ops::Range;

use phalanx_tensor::WholeElements;
use serde::{Deserialize, Serialize};

/// Some elements of a tensor, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Region {
    /// Elements `start..end` in row-major order: a part of flat memory, or the whole tensor.
    Flat {
        /// The first element.
        start: usize,
        /// The element after the last one.
        end: usize,
    },
    /// The elements whose index lies in a range `[start, end)` along every dimension: a shard of some dimensions.
    Dims {
        /// Start and end, for each dimension.
        ranges: Vec<[usize; 2]>,
    },
}

impl From<Range<usize>> for Region {
    fn from(Range { start, end }: Range<usize>) -> Self {
        Self::Flat { start, end }
    }
}

impl From<WholeElements> for Region {
    fn from(elements: WholeElements) -> Self {
        match elements {
            WholeElements::Row(range) => range.into(),
            WholeElements::Box(ranges) => Self::of_dims(&ranges),
        }
    }
}

impl Region {
    /// Returns all elements of a tensor of shape `shape`.
    pub fn whole(shape: &[usize]) -> Self {
        Self::Flat { start: 0, end: shape.iter().product() }
    }

    /// Returns the elements whose index lies in these ranges, one for each dimension.
    pub fn of_dims(ranges: &[Range<usize>]) -> Self {
        Self::Dims { ranges: ranges.iter().map(|range| [range.start, range.end]).collect() }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Flat { start, end } => end - start,
            Self::Dims { ranges } => ranges.iter().map(|[start, end]| end - start).product(),
        }
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if these can be elements of a tensor of shape `shape`.
    pub fn fits(&self, shape: &[usize]) -> bool {
        let Some(count) = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size)) else {
            return false;
        };
        match self {
            Self::Flat { start, end } => start <= end && *end <= count,
            Self::Dims { ranges } => {
                let inside = |([start, end], size): (&[usize; 2], &usize)| start <= end && end <= size;
                ranges.len() == shape.len() && ranges.iter().zip(shape).all(inside)
            }
        }
    }

    /// Splits the region into intervals of adjacent elements of a tensor of shape `shape`, in order. The region must fit the shape.
    pub(super) fn intervals(&self, shape: &[usize]) -> Vec<Interval> {
        let ranges = match self {
            Self::Flat { start, end } if start == end => return Vec::new(),
            Self::Flat { start, end } => return vec![Interval { start: *start, len: end - start, first: 0 }],
            Self::Dims { ranges } => ranges,
        };
        if self.is_empty() {
            return Vec::new();
        }
        // The last dimensions that are covered entirely, and the one before them, are adjacent in memory.
        let whole = (0..shape.len()).rev().take_while(|dim| ranges[*dim] == [0, shape[*dim]]).count();
        let outer = (shape.len() - whole).saturating_sub(1);
        let strides: Vec<usize> = (0..shape.len()).map(|dim| shape[dim + 1..].iter().product()).collect();
        let len = ranges[outer..].iter().map(|[start, end]| end - start).product();
        let base: usize = ranges.iter().zip(&strides).map(|([start, _], stride)| start * stride).sum();
        let count: usize = ranges[..outer].iter().map(|[start, end]| end - start).product();
        let interval = |index: usize| {
            let mut rest = index;
            let mut start = base;
            for dim in (0..outer).rev() {
                let size = ranges[dim][1] - ranges[dim][0];
                start += rest % size * strides[dim];
                rest /= size;
            }
            Interval { start, len, first: index * len }
        };
        (0..count).map(interval).collect()
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flat { start, end } => write!(f, "elements {start}..{end}"),
            Self::Dims { ranges } => {
                let ranges: Vec<String> =
                    ranges.iter().map(|[start, end]| format!("{start}..{end}")).collect();
                write!(f, "elements [{}]", ranges.join(", "))
            }
        }
    }
}

/// Elements of a region that are adjacent in the tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    /// The position of the first element in the tensor.
    pub(super) start: usize,
    pub(super) len: usize,
    /// The position of the first element in the region.
    pub(super) first: usize,
}

impl Interval {
    pub(super) fn end(&self) -> usize {
        self.start + self.len
    }

    /// Returns the elements `from..to` of the tensor, which this interval contains.
    fn part(&self, from: usize, to: usize) -> Self {
        Self { start: from, len: to - from, first: self.first + (from - self.start) }
    }
}

/// Elements that two regions share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overlap {
    /// The position of the first element in the wanted region.
    pub(super) wanted: usize,
    /// The position of the first element in the available region.
    pub(super) there: usize,
    pub(super) len: usize,
}

/// Returns the elements of `wanted` that are `there`, in order, and the missing rest of `wanted`.
pub(super) fn find(wanted: &[Interval], there: &[Interval]) -> (Vec<Overlap>, Vec<Interval>) {
    let (mut shared, mut left) = (Vec::new(), Vec::new());
    for interval in wanted {
        let mut at = interval.start;
        let first = there.partition_point(|other| other.end() <= interval.start);
        for other in there[first..].iter().take_while(|other| other.start < interval.end()) {
            let (from, to) = (at.max(other.start), interval.end().min(other.end()));
            if at < from {
                left.push(interval.part(at, from));
            }
            let (wanted, there) = (interval.part(from, to).first, other.part(from, to).first);
            shared.push(Overlap { wanted, there, len: to - from });
            at = to;
        }
        if at < interval.end() {
            left.push(interval.part(at, interval.end()));
        }
    }
    (shared, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element of a region, by its number in the tensor.
    fn elements(region: &Region, shape: &[usize]) -> Vec<usize> {
        region.intervals(shape).iter().flat_map(|interval| interval.start..interval.end()).collect()
    }

    #[test]
    fn runs_are_as_long_as_they_can_be() {
        let shape = [4, 3, 2];
        let of = |ranges: &[Range<usize>]| Region::of_dims(ranges);
        assert_eq!(of(&[1..3, 0..3, 0..2]).intervals(&shape), [Interval { start: 6, len: 12, first: 0 }]);
        assert_eq!(of(&[0..4, 0..3, 0..2]).intervals(&shape), [Interval { start: 0, len: 24, first: 0 }]);
        assert_eq!(
            of(&[1..3, 1..3, 0..2]).intervals(&shape),
            [Interval { start: 8, len: 4, first: 0 }, Interval { start: 14, len: 4, first: 4 }]
        );
        assert_eq!(elements(&of(&[2..4, 0..2, 1..2]), &shape), [13, 15, 19, 21]);
        assert_eq!(of(&[2..2, 0..3, 0..2]).intervals(&shape), []);
        assert_eq!(Region::from(3..9).intervals(&shape), [Interval { start: 3, len: 6, first: 0 }]);
        assert_eq!(Region::from(3..3).intervals(&shape), []);
        assert_eq!(
            Region::of_dims(&[]).intervals(&[]),
            [Interval { start: 0, len: 1, first: 0 }],
            "a scalar"
        );
    }

    #[test]
    fn what_is_there_is_told_from_what_is_left() {
        let shape = [4, 4];
        let wanted = Region::of_dims(&[1..3, 0..3]).intervals(&shape);
        let there = Region::from(0..6).intervals(&shape);
        let (shared, left) = find(&wanted, &there);
        assert_eq!(shared, [Overlap { wanted: 0, there: 4, len: 2 }]);
        assert_eq!(left, [Interval { start: 6, len: 1, first: 2 }, Interval { start: 8, len: 3, first: 3 }]);
        let there = Region::of_dims(&[2..4, 1..4]).intervals(&shape);
        let (shared, left) = find(&left, &there);
        assert_eq!(shared, [Overlap { wanted: 4, there: 0, len: 2 }]);
        assert_eq!(left, [Interval { start: 6, len: 1, first: 2 }, Interval { start: 8, len: 1, first: 3 }]);
    }

    #[test]
    fn regions_beyond_the_tensor_do_not_fit() {
        assert!(Region::from(2..6).fits(&[2, 3]) && !Region::from(2..7).fits(&[2, 3]));
        assert!(!Region::Flat { start: 3, end: 2 }.fits(&[2, 3]));
        assert!(
            Region::of_dims(&[0..2, 3..3]).fits(&[2, 3])
                && !Region::of_dims(std::slice::from_ref(&(0..2))).fits(&[2, 3])
        );
        assert!(!Region::of_dims(&[0..3, 0..3]).fits(&[2, 3]));
        assert!(!Region::from(0..1).fits(&[usize::MAX, 2]));
    }
}
