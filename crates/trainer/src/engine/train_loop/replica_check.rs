//! Compares what ranks hold alike.
//!
//! Replicas run the same steps from the same values, so they have the same bits after every step. If they differ, a CPU, memory or a
//! library has failed silently. Each parameter, and everything else that ranks hold alike, is hashed. Ranks first exchange one hash of
//! everything, and only if those differ the hashes of all tensors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::TrainError;
use crate::engine::distributed::Distributed;
use crate::engine::error::Divergence;

/// The hash of one tensor, or of the part of it that a rank holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fingerprint {
    /// Parameters, averages, or a kind of optimizer state.
    pub(super) kind: String,
    /// The parameter or buffer.
    pub(super) name: String,
    /// True if each rank holds all of it; otherwise ranks with the same shard hold the same part.
    pub(super) is_whole: bool,
    pub(super) hash: String,
}

impl Fingerprint {
    fn is_of_same_tensor(&self, other: &Self) -> bool {
        (&self.kind, &self.name, self.is_whole) == (&other.kind, &other.name, other.is_whole)
    }
}

/// The hash of everything that a rank holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RankHash {
    host: String,
    /// The rank's shard.
    shard: usize,
    /// The hash of what each rank holds.
    whole: String,
    /// The hash of what ranks with the same shard hold.
    sharded: String,
}

impl RankHash {
    fn new(host: String, shard: usize, all: &[Fingerprint]) -> Self {
        let of = |whole: bool| {
            let mut hasher = blake3::Hasher::new();
            for Fingerprint { kind, name, hash, .. } in all.iter().filter(|one| one.is_whole == whole) {
                hasher.update(format!("{kind}\0{name}\0{hash}\n").as_bytes());
            }
            hasher.finalize().to_hex().to_string()
        };
        Self { host, shard, whole: of(true), sharded: of(false) }
    }
}

/// True if the hashes of all ranks are equal, and those of each shard.
fn agree(ranks: &[RankHash]) -> bool {
    let of_shard: BTreeMap<usize, &RankHash> = ranks.iter().rev().map(|rank| (rank.shard, rank)).collect();
    let is_first =
        |rank: &RankHash| of_shard.get(&rank.shard).is_none_or(|first| first.sharded == rank.sharded);
    ranks.iter().all(|rank| rank.whole == ranks[0].whole && is_first(rank))
}

/// Finds the first tensor that ranks hold differently, and the ranks apart from a strict majority. `prints` are those of each rank.
fn first_difference(ranks: &[RankHash], prints: &[Vec<Fingerprint>]) -> Option<Divergence> {
    let mut tensors: Vec<&Fingerprint> = Vec::new();
    for print in prints.iter().flatten() {
        if !tensors.iter().any(|known| known.is_of_same_tensor(print)) {
            tensors.push(print);
        }
    }
    let groups = |tensor: &Fingerprint| groups(ranks, tensor.is_whole);
    let of = |tensor: &Fingerprint, members: &[usize]| difference(tensor, members, ranks, prints);
    let mut found = tensors
        .into_iter()
        .flat_map(|tensor| groups(tensor).into_iter().filter_map(move |group| of(tensor, &group)));
    let first = found.next()?;
    Some(Divergence { further: found.count(), ..first })
}

/// The groups of ranks that hold the same: all ranks, or those of each shard.
fn groups(ranks: &[RankHash], is_whole: bool) -> Vec<Vec<usize>> {
    let mut by_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (rank, hash) in ranks.iter().enumerate() {
        by_shard.entry(if is_whole { 0 } else { hash.shard }).or_default().push(rank);
    }
    by_shard.into_values().collect()
}

/// Returns the difference in a tensor between these ranks, if there is one.
fn difference(
    tensor: &Fingerprint,
    members: &[usize],
    ranks: &[RankHash],
    prints: &[Vec<Fingerprint>],
) -> Option<Divergence> {
    let mut by_hash: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
    for rank in members {
        let own = prints[*rank].iter().find(|own| own.is_of_same_tensor(tensor));
        by_hash.entry(own.map(|own| own.hash.as_str())).or_default().push(*rank);
    }
    if by_hash.len() < 2 {
        return None;
    }
    let majority = by_hash.values().find(|ranks| 2 * ranks.len() > members.len());
    let is_odd = |rank: &usize| majority.is_some_and(|majority| !majority.contains(rank));
    let odd: Vec<usize> = members.iter().copied().filter(is_odd).collect();
    let named = if odd.is_empty() { members } else { &odd };
    let hosts = named.iter().map(|rank| ranks[*rank].host.clone()).collect();
    let (kind, name) = (tensor.kind.clone(), tensor.name.clone());
    Some(Divergence { kind, name, odd, ranks: members.to_vec(), hosts, further: 0 })
}

/// Compares the hashes of all ranks after a step. All ranks call this together.
///
/// # Errors
/// [`TrainError::Diverged`] on all ranks if they hold different values.
pub(super) fn check_replicas(
    distributed: &Distributed,
    step: u64,
    shard: usize,
    prints: &[Fingerprint],
) -> Result<(), TrainError> {
    let Some(found) = compare(distributed, shard, prints)? else { return Ok(()) };
    // The first rank of the odd ones, or of all, reports the error.
    let own = distributed.rank();
    let reports = found.odd.first().or(found.ranks.first()).is_some_and(|first| *first == own);
    Err(TrainError::Diverged { step, found: Box::new(found), elsewhere: !reports })
}

/// Returns the first difference between ranks. All ranks call this together and find the same.
fn compare(
    distributed: &Distributed,
    shard: usize,
    prints: &[Fingerprint],
) -> Result<Option<Divergence>, TrainError> {
    let wrong = |error: serde_json::Error| TrainError::Setup(format!("hashes of replicas: {error}"));
    let own = RankHash::new(distributed.host().1, shard, prints);
    let ranks = distributed.exchange().gather_text(&serde_json::to_string(&own).map_err(wrong)?)?;
    let ranks: Vec<RankHash> =
        ranks.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>().map_err(wrong)?;
    if agree(&ranks) {
        return Ok(None);
    }
    let all = distributed.exchange().gather_text(&serde_json::to_string(prints).map_err(wrong)?)?;
    let all: Vec<Vec<Fingerprint>> =
        all.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>().map_err(wrong)?;
    Ok(first_difference(&ranks, &all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(name: &str, is_whole: bool, hash: &str) -> Fingerprint {
        Fingerprint { kind: "model".to_owned(), name: name.to_owned(), is_whole, hash: hash.to_owned() }
    }

    fn found(shards: &[usize], prints: &[Vec<Fingerprint>]) -> Option<Divergence> {
        let hash = |(rank, prints): (usize, &Vec<Fingerprint>)| {
            RankHash::new(format!("host{rank}"), shards[rank], prints)
        };
        let ranks: Vec<RankHash> = prints.iter().enumerate().map(hash).collect();
        let difference = first_difference(&ranks, prints);
        assert_eq!(agree(&ranks), difference.is_none(), "the short comparison finds what the long one does");
        difference
    }

    #[test]
    fn the_odd_rank_of_three_is_named_and_of_two_both() {
        let of = |hash: &str| vec![print("a", true, "0"), print("b", true, hash), print("c", true, hash)];
        assert_eq!(found(&[0; 3], &[of("1"), of("1"), of("1")]), None);
        let odd = found(&[0; 3], &[of("1"), of("2"), of("1")]).expect("one differs");
        assert_eq!((odd.name.as_str(), odd.odd.as_slice(), odd.further), ("b", &[1][..], 1));
        assert_eq!((odd.ranks, odd.hosts), (vec![0, 1, 2], vec!["host1".to_owned()]));
        let both = found(&[0; 2], &[of("1"), of("2")]).expect("they differ");
        assert_eq!((both.odd, both.ranks), (vec![], vec![0, 1]));
        assert_eq!(both.hosts, ["host0", "host1"]);
    }

    #[test]
    fn shards_are_compared_among_ranks_that_have_the_same() {
        let of = |hash: &str| vec![print("a", false, hash), print("b", true, "0")];
        let shards = [0, 1, 0, 1, 0, 1];
        let equal = [of("1"), of("2"), of("1"), of("2"), of("1"), of("2")];
        assert_eq!(found(&shards, &equal), None);
        let mut odd = equal;
        odd[3] = of("3");
        let odd = found(&shards, &odd).expect("one differs");
        assert_eq!((odd.odd, odd.ranks), (vec![3], vec![1, 3, 5]));
    }
}
