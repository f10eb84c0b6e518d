//! Buckets: units that travel together, each kind of memory of theirs in one buffer.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::Unit;
use phalanx_tensor::host::{copy_host, unwritten_flat};

use super::{LEADER, Place};
use crate::Result;
use crate::strategy::{Held, StateLayout};

/// Units that follow each other and are treated alike, laid out one after the other.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Its units' places.
    pub(super) members: Range<usize>,
    pub(super) len: usize,
    pub(super) dtype: DType,
    pub(super) device: Device,
    pub(super) trainable: bool,
    /// Whether the parameters leave memory between uses.
    pub(super) released: bool,
    /// The elements that this rank owns.
    pub(super) range: Range<usize>,
}

/// What of a bucket is in memory. Its units' tensors are views of these.
#[derive(Debug, Default)]
pub(super) struct BucketMemory {
    /// All parameters.
    pub(super) whole: Option<Tensor>,
    /// This rank's part of the parameters, if it has memory of its own.
    pub(super) own: Option<Tensor>,
    /// All gradients.
    pub(super) grads: Option<Tensor>,
    /// This rank's part of the summed gradients, if it has memory of its own.
    pub(super) own_grads: Option<Tensor>,
}

impl Bucket {
    pub(super) fn bytes(&self) -> usize {
        self.len * self.dtype.size_in_bytes()
    }

    /// Memory for all elements, to be overwritten.
    pub(super) fn room(&self) -> Result<Tensor> {
        room(self.len, self.dtype, &self.device)
    }

    /// Memory for this rank's elements, to be overwritten.
    pub(super) fn own_room(&self) -> Result<Tensor> {
        room(self.range.len(), self.dtype, &self.device)
    }
}

fn room(len: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    if device.is_cpu() {
        return Ok(unwritten_flat(len, dtype)?);
    }
    Ok(Tensor::zeros(len, dtype, device)?)
}

/// Lays units out into buckets, and says what rank `rank` of `world` owns of each.
pub(super) fn lay_out(
    units: &[Unit],
    placement: StateLayout,
    (rank, world): (usize, usize),
    bucket_bytes: usize,
) -> (Vec<Bucket>, Vec<Place>) {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut lies: Vec<(usize, Range<usize>)> = Vec::new();
    for (at, unit) in units.iter().enumerate() {
        // Parameters outside of any block are used at any time, and nobody says when their gradients begin to come.
        let loose = unit.block().is_empty();
        // The only part is the whole.
        let released = placement.parameters == Held::Sharded && !loose && world > 1;
        let joins = buckets.last().is_some_and(|last: &Bucket| {
            let before = &units[last.members.start];
            let alike =
                (last.trainable, last.dtype, last.released) == (unit.trainable(), unit.dtype(), released);
            // What belongs to a block is needed together anyway, so small companions of a large unit join it.
            let small = unit.block() == units[at - 1].block() && unit.bytes() < bucket_bytes;
            alike && !loose && !before.block().is_empty() && (last.bytes() < bucket_bytes || small)
        });
        if !joins {
            buckets.push(Bucket {
                members: at..at,
                len: 0,
                dtype: unit.dtype(),
                device: unit.device().clone(),
                trainable: unit.trainable(),
                released,
                range: 0..0,
            });
        }
        let index = buckets.len() - 1;
        let bucket = &mut buckets[index];
        lies.push((index, bucket.len..bucket.len + unit.len()));
        bucket.members.end = at + 1;
        bucket.len += unit.len();
    }
    for bucket in &mut buckets {
        bucket.range = match placement.optimizer {
            Held::Leader if rank == LEADER => 0..bucket.len,
            Held::Leader => 0..0,
            Held::Replicated | Held::Sharded => rank * bucket.len / world..(rank + 1) * bucket.len / world,
        };
    }
    let places = units.iter().zip(lies).map(|(unit, (index, lies))| {
        let bucket = &buckets[index];
        let start = bucket.range.start.clamp(lies.start, lies.end) - lies.start;
        let end = bucket.range.end.clamp(lies.start, lies.end) - lies.start;
        let range = start..end;
        let in_parts = placement.optimizer != Held::Replicated;
        Place {
            whole: unit.clone(),
            own: if in_parts { unit.shard(range.clone()) } else { unit.clone() },
            range,
            bucket: index,
            lies,
            released: bucket.released,
        }
    });
    let places = places.collect();
    (buckets, places)
}

/// What a plan needs to know of a bucket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BucketShare {
    pub(crate) bytes: u64,
    pub(crate) trainable: bool,
    pub(crate) released: bool,
    /// Whether the block that runs last has parameters in it.
    pub(crate) is_last: bool,
}

/// The buckets of units that have no values yet, and how many elements of each unit rank `rank` of `world` owns.
pub(crate) fn shares(
    units: &[Unit],
    placement: StateLayout,
    of: (usize, usize),
    bucket_bytes: usize,
) -> (Vec<BucketShare>, Vec<usize>) {
    let (buckets, places) = lay_out(units, placement, of, bucket_bytes);
    let last = units.iter().rev().map(Unit::block).find(|block| !block.is_empty());
    let share = |bucket: &Bucket| BucketShare {
        bytes: bucket.bytes() as u64,
        trainable: bucket.trainable,
        released: bucket.released,
        is_last: units[bucket.members.clone()].iter().any(|unit| Some(unit.block()) == last),
    };
    (buckets.iter().map(share).collect(), places.iter().map(|place| place.range.len()).collect())
}

/// One buffer with all of `parts` after each other, which together have its length.
pub(super) fn fill_from(target: &Tensor, parts: impl Iterator<Item = Result<Tensor>>) -> Result<()> {
    let mut at = 0;
    for part in parts {
        let part = part?;
        let len = part.elem_count();
        copy_host(&target.narrow(0, at, len)?, &part)?;
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use phalanx_tensor::{BuildOptions, Init, StoreBuilder};

    use super::*;

    /// Units of 10, 2 (block a), 100 (block b), 3 (block c), 4 (block d) and 5 (outside) elements of 4 bytes.
    fn units() -> Vec<Unit> {
        let builder = StoreBuilder::new(BuildOptions { decay_matrices_only: true, ..Default::default() });
        let root = builder.root();
        let add = |block: &str, matrix: usize, vector: usize| {
            let scope = if block.is_empty() { root.clone() } else { root.pp(block).block() };
            if matrix > 0 {
                scope.param("weight", (matrix, 1), Init::ZEROS).expect("a new name");
            }
            if vector > 0 {
                scope.param("bias", vector, Init::ZEROS).expect("a new name");
            }
        };
        add("a", 10, 2);
        add("b", 100, 0);
        add("c", 3, 0);
        add("d", 4, 0);
        add("", 5, 0);
        builder.build().expect("small").units().to_vec()
    }

    #[test]
    fn small_units_travel_together_and_large_ones_alone() {
        let row = crate::Strategy::named("fsdp").expect("a row").placement;
        for (bytes, members) in [
            (0, vec![0..1, 1..2, 2..3, 3..4, 4..5, 5..6]),
            // The bias of a joins its weight; b is large.
            (12, vec![0..2, 2..3, 3..4, 4..5, 5..6]),
            (16, vec![0..2, 2..3, 3..5, 5..6]),
            (1 << 20, vec![0..5, 5..6]),
        ] {
            let (buckets, _) = lay_out(&units(), row, (0, 1), bytes);
            let found: Vec<_> = buckets.iter().map(|bucket| bucket.members.clone()).collect();
            assert_eq!(found, members, "{bytes}");
        }
    }

    #[test]
    fn ranks_own_everything_once() {
        let row = crate::Strategy::named("fsdp").expect("a row").placement;
        for world in 1..=5 {
            let units = units();
            let mut owned = vec![0; units.len()];
            for rank in 0..world {
                let (buckets, places) = lay_out(&units, row, (rank, world), 64);
                for (place, owned) in places.iter().zip(&mut owned) {
                    if !place.range.is_empty() {
                        assert_eq!(place.range.start, *owned, "ranks follow each other");
                    }
                    *owned += place.range.len();
                    assert_eq!(place.own.len(), place.range.len());
                }
                for (index, bucket) in buckets.iter().enumerate() {
                    let own: usize =
                        places[bucket.members.clone()].iter().map(|place| place.range.len()).sum();
                    assert_eq!(own, bucket.range.len(), "bucket {index}");
                }
            }
            let all: Vec<_> = units.iter().map(Unit::len).collect();
            assert_eq!(owned, all, "{world} ranks");
        }
    }
}
