//! The logical ranks that have samples of a batch, as ops over a batch know them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Tensor};
use phalanx_collectives::CommError;
use phalanx_tensor::{Array, FlatStorage, HookResult, ProcessGroup};

use super::placement::VirtualRanks;
use super::tree::SumTree;
use super::turns::VirtualRankTurns;
use crate::Result;

/// The first `members` logical ranks, as one of them sees them. Their operations are those of all ranks that have some of them;
/// sums are taken along the tree over the shards, in f64.
#[derive(Debug)]
pub struct VirtualRankGroup {
    /// The number of the group in its step.
    number: usize,
    placed: VirtualRanks,
    members: usize,
    /// This logical rank.
    shard: usize,
    turns: Arc<VirtualRankTurns>,
    /// The ranks that have members, if they are several.
    ranks: Option<Arc<dyn ProcessGroup>>,
    /// The number of operations so far.
    met: AtomicU64,
}

impl VirtualRankGroup {
    /// The first `members` logical ranks as shard `shard` of `turns` sees them, in the `number`-th group of a step; `ranks` are the
    /// ranks that have members, none if that is one.
    pub fn of(
        number: usize,
        (placed, members): (VirtualRanks, usize),
        (shard, turns): (usize, Arc<VirtualRankTurns>),
        ranks: Option<Arc<dyn ProcessGroup>>,
    ) -> Arc<dyn ProcessGroup> {
        Arc::new(Self { number, placed, members, shard, turns, ranks, met: AtomicU64::new(0) })
    }

    /// The members that a rank has.
    fn members_of(&self, rank: usize) -> Range<usize> {
        let Range { start, end } = self.placed.of(rank);
        start.min(self.members)..end.min(self.members)
    }

    /// Gathers the values of all members, one after the other: `lens[m]` values of member `m`.
    fn gather(&self, own: Vec<f64>, lens: &[usize]) -> Result<Arc<Vec<f64>>> {
        let own_members = self.turns.own();
        let own_members = own_members.start..own_members.end.min(self.members);
        let met = (self.number, self.met.fetch_add(1, Ordering::Relaxed));
        let start = lens[..own_members.start].iter().sum::<usize>();
        self.turns.meet(met, (self.shard, own_members), own, |parts| {
            let Some(ranks) = &self.ranks else { return Ok(parts.concat()) };
            let mut all = vec![0.0; lens.iter().sum()];
            for (to, number) in all[start..].iter_mut().zip(parts.iter().flatten()) {
                *to = *number;
            }
            let len = all.len();
            let all = Array::from(Tensor::from_vec(all, len, &Device::Cpu)?);
            let of_rank = |rank| self.members_of(rank).map(|member| lens[member]).sum();
            let by_rank: Vec<usize> = (0..ranks.size()).map(of_rank).collect();
            let failed = |source| phalanx_tensor::TensorError::Hook { op: "logical ranks", source };
            ranks.all_gather(&all, &by_rank).map_err(failed)?;
            Ok(all.tensor()?.to_vec1()?)
        })
    }

    /// Elements `part` of the sums over the members of what each gives, which are `len` numbers.
    fn summed(&self, own: Vec<f64>, part: Range<usize>) -> Result<Vec<f64>> {
        let len = own.len();
        let all = self.gather(own, &vec![len; self.members])?;
        let nodes: Vec<Range<usize>> = (0..self.members).map(|member| member..member + 1).collect();
        let mut sums: Vec<Vec<f64>> =
            (0..self.members).map(|at| all[at * len..][part.clone()].to_vec()).collect();
        for [left, right] in SumTree::new(self.members).additions(&nodes) {
            let right = std::mem::take(&mut sums[right]);
            sums[left].iter_mut().zip(right).for_each(|(left, right)| *left += right);
        }
        Ok(sums.swap_remove(0))
    }

    fn check(&self, operation: &'static str, lens: &[usize], len: usize) -> Result<()> {
        let sum = lens.iter().sum::<usize>();
        if lens.len() == self.members && sum == len {
            return Ok(());
        }
        let members = self.members;
        let problem =
            format!("parts {lens:?} of {members} logical ranks are {sum} numbers, and there are {len}");
        Err(CommError::Argument { operation, problem }.into())
    }
}

/// The elements of an array in f64.
fn read(values: &Array) -> Result<Vec<f64>> {
    let flat = values.to_host()?.flatten_all()?;
    Ok(flat.to_dtype(DType::F64)?.to_vec1()?)
}

/// Overwrites elements from `start` on.
fn write(values: &Array, start: usize, numbers: &[f64]) -> Result<()> {
    let flat = FlatStorage::new(values.reshape(values.elem_count())?)?;
    let numbers = Tensor::new(numbers, &Device::Cpu)?.to_dtype(flat.dtype())?;
    Ok(flat.narrow(start..start + numbers.elem_count())?.put(&numbers)?)
}

impl ProcessGroup for VirtualRankGroup {
    fn rank(&self) -> usize {
        self.shard
    }

    fn size(&self) -> usize {
        self.members
    }

    fn all_reduce(&self, values: &Array) -> HookResult {
        let own = read(values)?;
        let all = 0..own.len();
        Ok(write(values, 0, &self.summed(own, all)?)?)
    }

    fn all_gather(&self, values: &Array, lens: &[usize]) -> HookResult {
        let all = read(values)?;
        self.check("all-gather", lens, all.len())?;
        let start = lens[..self.shard].iter().sum::<usize>();
        let own = all[start..][..lens[self.shard]].to_vec();
        Ok(write(values, 0, &self.gather(own, lens)?)?)
    }

    fn reduce_scatter(&self, values: &Array, lens: &[usize]) -> HookResult {
        let own = read(values)?;
        self.check("reduce-scatter", lens, own.len())?;
        let start = lens[..self.shard].iter().sum::<usize>();
        let sum = self.summed(own, start..start + lens[self.shard])?;
        Ok(write(values, start, &sum)?)
    }
}

#[cfg(test)]
mod tests {
    use phalanx_collectives::threads;

    use super::*;
    use crate::mesh::part;
    use crate::{RankGroup, ShardingError};

    /// Runs an operation of `members` shards on `ranks` ranks, and returns each member's values.
    fn run(
        (shards, members, ranks): (usize, usize, usize),
        operation: fn(&dyn ProcessGroup) -> Vec<f32>,
    ) -> Vec<Vec<f32>> {
        let placed = VirtualRanks::new(shards, ranks).expect("a shard for each");
        let of_ranks = threads(ranks).expect("threads").into_iter().map(|comm| {
            std::thread::spawn(move || {
                let (rank, holders) = (comm.rank(), placed.ranks_of_first(members));
                let group = part(&comm, usize::from(rank >= holders)).expect("a group");
                let inner = (holders > 1).then(|| RankGroup::of(&group));
                let turns = VirtualRankTurns::new(placed.of(rank), Vec::new());
                let of_shards = turns.run(|shard| {
                    let inner = inner.clone();
                    let group = VirtualRankGroup::of(0, (placed, members), (shard, turns.clone()), inner);
                    Ok::<_, ShardingError>((shard < members).then(|| operation(&*group)))
                });
                of_shards.expect("goes well").into_iter().flatten().collect::<Vec<_>>()
            })
        });
        let of_ranks: Vec<_> = of_ranks.collect();
        of_ranks.into_iter().flat_map(|rank| rank.join().expect("no panic")).collect()
    }

    fn array(values: Vec<f32>) -> Array {
        let len = values.len();
        Array::from(Tensor::from_vec(values, len, &Device::Cpu).expect("small"))
    }

    fn numbers(array: &Array) -> Vec<f32> {
        array.tensor().expect("of the host").to_vec1().expect("f32")
    }

    #[test]
    fn operations_give_the_same_bits_on_any_number_of_ranks() {
        let sum = |group: &dyn ProcessGroup| {
            let own = group.rank() as f32;
            let values = array(vec![0.1 + own, 1e-8 * own, 1.0]);
            group.all_reduce(&values).expect("sums");
            // Twice, since groups meet again and again.
            group.all_reduce(&values).expect("sums");
            numbers(&values)
        };
        let gather = |group: &dyn ProcessGroup| {
            let lens: Vec<usize> = (0..group.size()).map(|rank| rank % 3).collect();
            let start: usize = lens[..group.rank()].iter().sum();
            let mut values = vec![f32::NAN; lens.iter().sum()];
            values[start..][..lens[group.rank()]].fill(group.rank() as f32);
            let values = array(values);
            group.all_gather(&values, &lens).expect("gathers");
            numbers(&values)
        };
        let scatter = |group: &dyn ProcessGroup| {
            let lens = vec![2; group.size()];
            let own = group.rank() as f32;
            let values = array((0..2 * group.size()).map(|at| own * 0.3 + at as f32).collect());
            group.reduce_scatter(&values, &lens).expect("sums");
            numbers(&values)[2 * group.rank()..][..2].to_vec()
        };
        for (shards, members) in [(4, 4), (5, 5), (4, 3), (6, 1)] {
            for operation in [sum as fn(&dyn ProcessGroup) -> Vec<f32>, gather, scatter] {
                let alone = run((shards, members, 1), operation);
                assert_eq!(alone.len(), members);
                for ranks in 2..=shards {
                    assert_eq!(run((shards, members, ranks), operation), alone, "{shards} on {ranks}");
                }
            }
            let sums = run((shards, members, 1), sum);
            assert_eq!(sums[0][2], (members * members) as f32);
            let parts = run((shards, members, 1), scatter);
            let expected = |at: usize| (0..members).map(|own| own as f32 * 0.3 + at as f32).sum::<f32>();
            assert!((parts[members - 1][1] - expected(2 * members - 1)).abs() < 1e-4);
        }
        let gathered = run((4, 4, 2), gather);
        assert_eq!(gathered[3], [1.0, 2.0, 2.0]);
    }
}
