//! How parameters lie in flat memory, decided once: from blocks and sizes, before there is any.

use std::ops::Range;

use candle_core::{DType, Shape};

use super::{BuildOptions, Param};
use crate::init::Init;

/// One parameter of a [`super::FlatParam`], or the elements of it that a rank owns.
#[derive(Debug, Clone)]
pub struct FlatEntry {
    /// The parameter's name.
    pub name: String,
    /// Its shape; flat where these are the elements of a shard.
    pub shape: Shape,
    /// Where the elements lie in the flat memory that the entry is of.
    pub range: Range<usize>,
    /// Which elements of the parameter these are.
    pub part: Range<usize>,
    pub(super) init: Init,
}

/// Neighbouring parameters of one block that optimizers treat alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamGroup {
    /// The block; empty for parameters outside of any.
    pub block: String,
    /// Whether weight decay applies.
    pub decay: bool,
    /// Their elements in the flat memory that the group is of.
    pub range: Range<usize>,
}

/// What lies in one flat memory.
#[derive(Debug, Clone)]
pub(super) struct FlatLayout {
    pub(super) trainable: bool,
    pub(super) dtype: DType,
    pub(super) entries: Vec<FlatEntry>,
    pub(super) groups: Vec<ParamGroup>,
}

impl FlatLayout {
    pub(super) fn len(&self) -> usize {
        self.groups.last().map_or(0, |group| group.range.end)
    }

    fn bytes(&self) -> usize {
        self.len() * self.dtype.size_in_bytes()
    }
}

/// A group that is being collected.
struct Collected<'a> {
    block: &'a str,
    trainable: bool,
    decay: bool,
    members: Vec<&'a Param>,
}

impl Collected<'_> {
    fn len(&self) -> usize {
        self.members.iter().map(|param| param.elem_count()).sum()
    }
}

/// Lays parameters, each with its block, out in flat memories.
///
/// Parameters of a block that are treated alike make a group, or several where they would have more than
/// [`BuildOptions::unit_bytes`] together. Groups that follow each other, all trainable or all frozen, share one memory until
/// it has [`BuildOptions::bucket_bytes`]; small companions of a large group of their block join it, because what belongs to a
/// block is needed together anyway. A group outside of any block lies alone: its parameters are used at any time, and nobody
/// says when their gradients begin to come.
pub(super) fn lay_out(params: &[(Param, String)], options: &BuildOptions) -> Vec<FlatLayout> {
    let size = options.dtype.size_in_bytes();
    let mut groups: Vec<Collected<'_>> = Vec::new();
    for (param, block) in params {
        let decay = !options.decay_matrices_only || param.dims().len() >= 2;
        let of = (block.as_str(), param.trainable(), decay);
        let fits = |group: &Collected<'_>| {
            (group.len() + param.elem_count()).saturating_mul(size) <= options.unit_bytes
        };
        match groups.iter_mut().rev().find(|group| (group.block, group.trainable, group.decay) == of) {
            Some(group) if fits(group) => group.members.push(param),
            _ => {
                let (block, trainable, decay) = of;
                groups.push(Collected { block, trainable, decay, members: vec![param] });
            }
        }
    }
    let mut flats: Vec<FlatLayout> = Vec::new();
    for group in groups {
        let joins = flats.last().is_some_and(|flat| {
            let before = flat.groups.last().map_or("", |group| &group.block);
            let small = group.block == before && group.len() * size < options.bucket_bytes;
            let inside = !group.block.is_empty() && !before.is_empty();
            flat.trainable == group.trainable && inside && (flat.bytes() < options.bucket_bytes || small)
        });
        if !joins {
            let (trainable, dtype) = (group.trainable, options.dtype);
            flats.push(FlatLayout { trainable, dtype, entries: Vec::new(), groups: Vec::new() });
        }
        let Some(flat) = flats.last_mut() else { continue };
        let start = flat.len();
        let mut end = start;
        for param in group.members {
            let range = end..end + param.elem_count();
            end = range.end;
            let (name, shape) = (param.name().to_owned(), param.shape().clone());
            flat.entries.push(FlatEntry {
                name,
                shape,
                range,
                part: 0..param.elem_count(),
                init: param.init(),
            });
        }
        let (block, decay) = (group.block.to_owned(), group.decay);
        flat.groups.push(ParamGroup { block, decay, range: start..end });
    }
    flats
}

/// The part of `range` that lies in `within`, counted from its start; nothing if they do not meet.
pub(super) fn meet(range: &Range<usize>, within: &Range<usize>) -> Option<Range<usize>> {
    let (start, end) = (range.start.max(within.start), range.end.min(within.end));
    (start < end).then(|| start - within.start..end - within.start)
}

#[cfg(test)]
mod tests {
    use crate::{BuildOptions, FlatParam, Init, StoreBuilder};

    #[test]
    fn large_blocks_are_cut_between_parameters() {
        let lens = |unit_bytes: usize| {
            let options = BuildOptions { unit_bytes, bucket_bytes: 0, ..Default::default() };
            let builder = StoreBuilder::new(options);
            let block = builder.root().pp("a").block();
            for (name, len) in [("p", 3), ("q", 4), ("r", 20), ("s", 1), ("t", 2)] {
                block.param(name, len, Init::ZEROS).expect("a new name");
            }
            let store = builder.build().expect("small");
            assert_eq!(store.param("a.t").expect("known").tensor().expect("filled").dims(), [2]);
            store.flat_params().iter().map(FlatParam::len).collect::<Vec<_>>()
        };
        assert_eq!(lens(usize::MAX), [30]);
        assert_eq!(lens(28), [7, 20, 3]);
        assert_eq!(lens(0), [3, 4, 20, 1, 2]);
    }

    /// Groups of 10, 2 (block a), 100 (block b), 3 (block c), 4 (block d) and 5 (outside) elements of 4 bytes.
    fn flats(bucket_bytes: usize) -> Vec<FlatParam> {
        let options = BuildOptions { decay_matrices_only: true, bucket_bytes, ..Default::default() };
        let builder = StoreBuilder::new(options);
        let root = builder.root();
        for (block, matrix, vector) in [("a", 10, 2), ("b", 100, 0), ("c", 3, 0), ("d", 4, 0), ("", 5, 0)] {
            let scope = if block.is_empty() { root.clone() } else { root.pp(block).block() };
            scope.param("weight", (matrix, 1), Init::ZEROS).expect("a new name");
            if vector > 0 {
                scope.param("bias", vector, Init::ZEROS).expect("a new name");
            }
        }
        builder.build().expect("small").flat_params().to_vec()
    }

    #[test]
    fn small_groups_lie_together_and_large_ones_alone() {
        for (bucket_bytes, lens) in [
            (0, vec![10, 2, 100, 3, 4, 5]),
            // The bias of a joins its weight; b is large.
            (12, vec![12, 100, 3, 4, 5]),
            (16, vec![12, 100, 7, 5]),
            (1 << 20, vec![119, 5]),
        ] {
            let found: Vec<_> = flats(bucket_bytes).iter().map(FlatParam::len).collect();
            assert_eq!(found, lens, "{bucket_bytes}");
        }
        let together = flats(1 << 20);
        assert_eq!(together[0].blocks().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        let decays: Vec<_> =
            together[0].groups().iter().map(|group| (group.decay, group.range.clone())).collect();
        assert_eq!(
            decays,
            [(true, 0..10), (false, 10..12), (true, 12..112), (true, 112..115), (true, 115..119)]
        );
    }
}
