//! The layout of parameters in buckets, decided once from blocks and sizes.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Shape};

use super::spec::{ParamKind, ParamSpec, Trained};
use super::{BuildOptions, Portion};
use crate::Key;
use crate::init::Init;

/// A parameter of a [`super::ParamBucket`], or the elements of it that a rank owns.
#[derive(Debug, Clone)]
pub struct BucketEntry {
    /// The parameter's name.
    pub name: String,
    /// Its shape, or that of the portion that this rank holds; flat for the elements of a shard.
    pub shape: Shape,
    /// The portion that this rank holds, if layers are cut over ranks and this one is.
    pub portion: Option<Arc<Portion>>,
    /// The elements' position in the flat memory.
    pub range: Range<usize>,
    /// The elements' position in the parameter, or in the portion of it.
    pub part: Range<usize>,
    /// True for a matrix of a layer, which [`crate::optim::Muon`] steps as one: of two dimensions or more, no table, and not
    /// among [`super::ParamRules::unturned`].
    pub is_turned: bool,
    pub(super) init: Init,
}

impl BucketEntry {
    /// Fills `out` with the initial values of elements `part` of the parameter, or of the portion of it. They depend on the
    /// elements' positions in the whole parameter alone.
    pub(super) fn initial_values(&self, key: Key, part: Range<usize>, out: &mut [f64]) {
        let Some(portion) = &self.portion else { return self.init.fill(self.shape.dims(), key, part, out) };
        let mut rest = out;
        for row in portion.rows(part) {
            let (now, later) = rest.split_at_mut(row.len());
            self.init.fill(portion.whole().dims(), key, row, now);
            rest = later;
        }
    }
}

/// Consecutive parameters of one block with the same weight decay and the same factor of the learning rate.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamGroup {
    /// The block; empty for parameters outside of blocks.
    pub block: String,
    /// True if weight decay applies.
    pub decay: bool,
    /// The factor of the learning rate.
    pub rate: f64,
    /// False if another rank has the same elements, and sums over all parameters take them from there.
    pub counts: bool,
    /// The group's elements in the flat memory.
    pub range: Range<usize>,
}

/// The elements of a group that a rank owns.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnedGroup {
    /// The elements, counted from the first owned one of the bucket.
    pub range: Range<usize>,
    /// True if weight decay applies.
    pub decay: bool,
    /// The factor of the learning rate.
    pub rate: f64,
    /// False if another rank has the same elements, and sums over all parameters take them from there.
    pub counts: bool,
}

/// The parameters of one bucket.
#[derive(Debug, Clone)]
pub(super) struct BucketLayout {
    pub(super) trained: Trained,
    pub(super) dtype: DType,
    pub(super) entries: Vec<BucketEntry>,
    pub(super) groups: Vec<ParamGroup>,
    /// The stages of a pipeline that hold it, if it is several.
    pub(super) stages: Arc<[usize]>,
}

impl BucketLayout {
    pub(super) fn len(&self) -> usize {
        self.groups.last().map_or(0, |group| group.range.end)
    }
}

/// The properties that the parameters of a group share.
#[derive(Clone, Copy, PartialEq)]
struct Alike<'a> {
    block: &'a str,
    trained: Trained,
    decay: bool,
    rate: f64,
    is_cut: bool,
    counts: bool,
    stages: &'a [usize],
}

impl<'a> Alike<'a> {
    fn of(param: &'a ParamSpec, options: &BuildOptions) -> Self {
        Self {
            block: &param.block,
            trained: param.trained,
            decay: (!options.decay_matrices_only || param.shape.rank() >= 2)
                && !options.rules.exempts(&param.name, &param.block),
            rate: param.rate,
            is_cut: param.portion.is_some(),
            counts: param.counts,
            stages: &param.stages,
        }
    }
}

/// A group under construction.
struct GroupDraft<'a> {
    alike: Alike<'a>,
    members: Vec<&'a ParamSpec>,
    /// Their bytes, as far as they decide about groups and buckets.
    bytes: usize,
}

/// The bytes by which a parameter decides about groups and buckets: of a portion the mean over the ranks, so that all ranks have the same
/// buckets.
fn deciding_bytes(param: &ParamSpec, options: &BuildOptions) -> usize {
    let elements = match (&param.portion, &options.layout) {
        (Some(portion), Some(layout)) => portion.whole().elem_count().div_ceil(layout.ranks()),
        _ => param.shape.elem_count(),
    };
    elements * options.dtype.size_in_bytes()
}

/// Groups parameters and lays the groups out in buckets.
///
/// Parameters of a block with the same properties form a group, or several if they exceed
/// [`BuildOptions::unit_bytes`] together. Consecutive groups that are trained in the same part of a run share a bucket until
/// it has [`BuildOptions::bucket_bytes`]. A small group joins a large one of its block, because a block needs its
/// parameters together. A group outside of blocks has its own bucket: its parameters are used at any time, and no
/// listener announces when their gradients begin.
///
/// Parameters that several stages of a pipeline hold share a bucket with such of the same stages only: their gradients are summed over
/// these.
///
/// Portions and whole parameters never share a bucket. What shards and codecs make of a whole parameter must not depend on portions next to
/// it, which differ between the ranks that hold it alike.
pub(super) fn lay_out(params: &[&ParamSpec], options: &BuildOptions) -> Vec<BucketLayout> {
    let mut groups: Vec<GroupDraft<'_>> = Vec::new();
    for param in params {
        let (alike, bytes) = (Alike::of(param, options), deciding_bytes(param, options));
        match groups.iter_mut().rev().find(|group| group.alike == alike) {
            Some(group) if group.bytes.saturating_add(bytes) <= options.unit_bytes => {
                group.members.push(param);
                group.bytes += bytes;
            }
            _ => groups.push(GroupDraft { alike, members: vec![param], bytes }),
        }
    }
    // Stable: whole parameters first, both in the order of the model.
    groups.sort_by_key(|group| group.alike.is_cut);
    let mut buckets: Vec<BucketLayout> = Vec::new();
    let (mut bytes, mut was_cut) = (0, false);
    for group in groups {
        let Alike { block, trained, decay, rate, counts, is_cut, stages } = group.alike;
        let joins = buckets.last().is_some_and(|bucket| {
            let before = bucket.groups.last().map_or("", |group| &group.block);
            let small = block == before && group.bytes < options.bucket_bytes;
            let inside = !block.is_empty() && !before.is_empty();
            let alike = bucket.trained == trained && was_cut == is_cut && *bucket.stages == *stages;
            alike && inside && (bytes < options.bucket_bytes || small)
        });
        (bytes, was_cut) = (if joins { bytes } else { 0 } + group.bytes, is_cut);
        if !joins {
            buckets.push(BucketLayout {
                trained,
                dtype: options.dtype,
                entries: Vec::new(),
                groups: Vec::new(),
                stages: stages.into(),
            });
        }
        let Some(bucket) = buckets.last_mut() else { continue };
        let start = bucket.len();
        let mut end = start;
        for param in group.members {
            let range = end..end + param.shape.elem_count();
            end = range.end;
            let (name, shape) = (param.name.clone(), param.shape.clone());
            bucket.entries.push(BucketEntry {
                name,
                shape,
                portion: param.portion.clone(),
                range,
                part: 0..param.shape.elem_count(),
                is_turned: param.shape.rank() >= 2
                    && param.kind != ParamKind::Table
                    && !options.rules.keeps_unturned(&param.name, &param.block),
                init: param.init,
            });
        }
        bucket.groups.push(ParamGroup { block: block.to_owned(), decay, rate, counts, range: start..end });
    }
    buckets
}

/// Returns the part of `range` inside `within`, counted from the start of `within`; `None` if they are disjoint.
pub(super) fn meet(range: &Range<usize>, within: &Range<usize>) -> Option<Range<usize>> {
    let (start, end) = (range.start.max(within.start), range.end.min(within.end));
    (start < end).then(|| start - within.start..end - within.start)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::{BuildOptions, Init, NamePattern, ParamBucket, ParamRules, StoreBuilder};

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
            store.buckets().iter().map(ParamBucket::len).collect::<Vec<_>>()
        };
        assert_eq!(lens(usize::MAX), [30]);
        assert_eq!(lens(28), [7, 20, 3]);
        assert_eq!(lens(0), [3, 4, 20, 1, 2]);
    }

    /// Groups of 10, 2 (block a), 100 (block b), 3 (block c), 4 (block d) and 5 (outside) elements of 4 bytes.
    fn buckets(bucket_bytes: usize) -> Vec<ParamBucket> {
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
        builder.build().expect("small").buckets().to_vec()
    }

    #[test]
    fn parameters_are_exempt_from_decay_by_name() {
        let undecayed = vec![NamePattern::new("*.table").expect("a pattern")];
        let rules = Arc::new(ParamRules { undecayed, ..ParamRules::default() });
        let builder = StoreBuilder::new(BuildOptions { rules, ..Default::default() });
        let block = builder.root().pp("a").block();
        for (name, rows) in [("table", 3), ("weight", 4)] {
            block.param(name, (rows, 2), Init::ZEROS).expect("a new name");
        }
        let store = builder.build().expect("small");
        let groups = store.buckets()[0].groups();
        let decays: Vec<_> = groups.iter().map(|group| (group.decay, group.range.len())).collect();
        assert_eq!(decays, [(false, 6), (true, 8)]);
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
            let found: Vec<_> = buckets(bucket_bytes).iter().map(ParamBucket::len).collect();
            assert_eq!(found, lens, "{bucket_bytes}");
        }
        let together = buckets(1 << 20);
        assert_eq!(together[0].blocks().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        let decays: Vec<_> =
            together[0].groups().iter().map(|group| (group.decay, group.range.clone())).collect();
        assert_eq!(
            decays,
            [(true, 0..10), (false, 10..12), (true, 12..112), (true, 112..115), (true, 115..119)]
        );
    }
}
