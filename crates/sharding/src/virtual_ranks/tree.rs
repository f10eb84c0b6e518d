//! The binary tree along which shards are summed.

use std::convert::Infallible;
use std::ops::Range;

/// The tree over `0..shards`: a node of level `l` is the sum of an aligned run of 2ˡ shards, or fewer at the end, and the sum
/// of its two halves, left plus right. It depends on the number of shards alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumTree {
    shards: usize,
}

impl SumTree {
    /// Makes the tree over `shards` shards.
    pub fn new(shards: usize) -> Self {
        Self { shards }
    }

    /// True if two runs of shards, the second right after the first, are the halves of a node.
    fn joins(self, left: &Range<usize>, right: &Range<usize>) -> bool {
        let half = left.len();
        left.end == right.start
            && half.is_power_of_two()
            && left.start.is_multiple_of(2 * half)
            && right.end == (left.start + 2 * half).min(self.shards)
    }

    /// Adds the sum of the shards that follow to the sums of whole nodes that there are, and joins the halves of nodes: `add` puts
    /// the sum of the left half, which it is given first, and of the right one in place of the left one.
    ///
    /// # Errors
    /// Errors of `add`.
    pub fn push<T, E>(
        self,
        sums: &mut Vec<(Range<usize>, T)>,
        (mut shards, mut sum): (Range<usize>, T),
        mut add: impl FnMut(T, T) -> Result<T, E>,
    ) -> Result<(), E> {
        while let Some((left, of_left)) = sums.pop_if(|(left, _)| self.joins(left, &shards)) {
            (shards, sum) = (left.start..shards.end, add(of_left, sum)?);
        }
        sums.push((shards, sum));
        Ok(())
    }

    /// The runs of shards whose sums a rank that has the shards of `run` sends: those of the largest whole nodes in it.
    pub fn nodes(self, run: Range<usize>) -> Vec<Range<usize>> {
        let mut nodes = Vec::new();
        for shard in run {
            let Ok(()) = self.push(&mut nodes, (shard..shard + 1, ()), |(), ()| Ok::<_, Infallible>(()));
        }
        nodes.into_iter().map(|(node, ())| node).collect()
    }

    /// In which order sums of nodes, which follow each other and are all shards together, become one: pairs of positions, of which the
    /// second is added to the first.
    pub fn additions(self, nodes: &[Range<usize>]) -> Vec<[usize; 2]> {
        let (mut sums, mut additions) = (Vec::new(), Vec::new());
        for (at, node) in nodes.iter().enumerate() {
            let Ok(()) = self.push(&mut sums, (node.clone(), at), |left, right| {
                additions.push([left, right]);
                Ok::<_, Infallible>(left)
            });
        }
        additions
    }

    /// The sum of one number of each shard; 0 of none.
    pub fn sum(self, mut numbers: Vec<f64>) -> f64 {
        let leaves: Vec<Range<usize>> = (0..numbers.len()).map(|shard| shard..shard + 1).collect();
        for [left, right] in self.additions(&leaves) {
            numbers[left] += numbers[right];
        }
        numbers.first().copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_shards_are_cut_the_additions_are_those_of_one_rank() {
        // Sums as text: the order of additions shows.
        let add = |left: String, right: String| Ok::<_, ()>(format!("({left}+{right})"));
        for shards in 1..=9 {
            let tree = SumTree::new(shards);
            let mut alone = Vec::new();
            for shard in 0..shards {
                tree.push(&mut alone, (shard..shard + 1, shard.to_string()), add).expect("adds");
            }
            assert_eq!(alone.len(), 1, "{alone:?}");
            for cuts in 0..1_usize << (shards - 1) {
                // A cut after shard s where bit s is set.
                let mut parts = vec![Vec::new()];
                for shard in 0..shards {
                    let own = parts.last_mut().expect("one");
                    tree.push(own, (shard..shard + 1, shard.to_string()), add).expect("adds");
                    if cuts >> shard & 1 == 1 {
                        parts.push(Vec::new());
                    }
                }
                for part in &parts {
                    let run = part[0].0.start..part[part.len() - 1].0.end;
                    let nodes: Vec<_> = part.iter().map(|(node, _)| node.clone()).collect();
                    assert_eq!(tree.nodes(run), nodes);
                }
                let all: Vec<_> = parts.concat();
                let nodes: Vec<_> = all.iter().map(|(node, _)| node.clone()).collect();
                let mut sums: Vec<String> = all.iter().map(|(_, sum)| sum.clone()).collect();
                for [left, right] in tree.additions(&nodes) {
                    sums[left] = add(sums[left].clone(), sums[right].clone()).expect("adds");
                }
                assert_eq!(sums[0], alone[0].1, "{shards} shards cut as {cuts:b}");
            }
        }
    }

    #[test]
    fn numbers_are_summed_along_the_tree() {
        let mut wide = vec![1.0, 1e16, -1e16, 1.0];
        assert_eq!(SumTree::new(4).sum(wide.clone()), (1.0 + 1e16) + (-1e16 + 1.0));
        wide.truncate(3);
        assert_eq!(SumTree::new(3).sum(wide), (1.0 + 1e16) - 1e16);
        assert_eq!(SumTree::new(0).sum(Vec::new()), 0.0);
    }
}
