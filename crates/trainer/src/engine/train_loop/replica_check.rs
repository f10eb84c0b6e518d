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

/// The part of a tensor that a rank holds; ranks with the same part hold the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct HeldPart {
    /// The stages of the model that hold it; empty if there are no stages.
    pub(super) stages: Vec<usize>,
    /// The rank's shard, if ranks of data hold different ones.
    pub(super) shard: Option<usize>,
    /// The rank's portion, if layers are cut over ranks and this one is.
    pub(super) portion: Option<usize>,
}

/// The hash of one tensor, or of the part of it that a rank holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fingerprint {
    /// Parameters, averages, or a kind of optimizer state.
    pub(super) kind: String,
    /// The parameter or buffer.
    pub(super) name: String,
    pub(super) part: HeldPart,
    pub(super) hash: String,
}

impl Fingerprint {
    fn is_of_same_tensor(&self, other: &Self) -> bool {
        (&self.kind, &self.name, &self.part) == (&other.kind, &other.name, &other.part)
    }
}

/// The hash of everything that a rank holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RankHash {
    host: String,
    /// The parts, each with the hash of all that is held in that way.
    parts: Vec<PartHash>,
}

/// The hash of everything that a rank holds in one way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PartHash {
    part: HeldPart,
    hash: String,
}

impl RankHash {
    fn new(host: String, all: &[Fingerprint]) -> Self {
        let mut hashers: BTreeMap<HeldPart, blake3::Hasher> = BTreeMap::new();
        for Fingerprint { kind, name, part, hash } in all {
            let hasher = hashers.entry(part.clone()).or_default();
            hasher.update(format!("{kind}\0{name}\0{hash}\n").as_bytes());
        }
        let hash = |(part, hasher): (HeldPart, blake3::Hasher)| {
            let hash = hasher.finalize().to_hex().to_string();
            PartHash { part, hash }
        };
        Self { host, parts: hashers.into_iter().map(hash).collect() }
    }

    fn hash_of(&self, part: &HeldPart) -> Option<&str> {
        self.parts.iter().find(|own| own.part == *part).map(|own| own.hash.as_str())
    }
}

/// True if the hashes of each part are equal on all ranks that hold it.
fn agree(ranks: &[RankHash]) -> bool {
    let mut known: BTreeMap<&HeldPart, &str> = BTreeMap::new();
    ranks
        .iter()
        .flat_map(|rank| &rank.parts)
        .all(|own| *known.entry(&own.part).or_insert(&own.hash) == own.hash)
}

/// Finds the first tensor that ranks hold differently, and the ranks apart from a strict majority. `prints` are those of each rank.
fn first_difference(ranks: &[RankHash], prints: &[Vec<Fingerprint>]) -> Option<Divergence> {
    let mut tensors: Vec<&Fingerprint> = Vec::new();
    for print in prints.iter().flatten() {
        if !tensors.iter().any(|known| known.is_of_same_tensor(print)) {
            tensors.push(print);
        }
    }
    let mut found = tensors
        .into_iter()
        .filter_map(|tensor| difference(tensor, &holders(ranks, &tensor.part), ranks, prints));
    let first = found.next()?;
    Some(Divergence { further: found.count(), ..first })
}

/// The ranks that hold a part.
fn holders(ranks: &[RankHash], part: &HeldPart) -> Vec<usize> {
    (0..ranks.len()).filter(|rank| ranks[*rank].hash_of(part).is_some()).collect()
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
    prints: &[Fingerprint],
) -> Result<(), TrainError> {
    let Some(found) = compare(distributed, prints)? else { return Ok(()) };
    // The first rank of the odd ones, or of all, reports the error.
    let own = distributed.rank();
    let reports = found.odd.first().or(found.ranks.first()).is_some_and(|first| *first == own);
    Err(TrainError::Diverged { step, found: Box::new(found), elsewhere: !reports })
}

/// Returns the first difference between ranks. All ranks call this together and find the same.
fn compare(distributed: &Distributed, prints: &[Fingerprint]) -> Result<Option<Divergence>, TrainError> {
    let wrong = |error: serde_json::Error| TrainError::Setup(format!("hashes of replicas: {error}"));
    let own = RankHash::new(distributed.host().1, prints);
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

    const WHOLE: HeldPart = HeldPart { stages: Vec::new(), shard: None, portion: None };

    fn print(name: &str, part: HeldPart, hash: &str) -> Fingerprint {
        Fingerprint { kind: "model".to_owned(), name: name.to_owned(), part, hash: hash.to_owned() }
    }

    fn found(prints: &[Vec<Fingerprint>]) -> Option<Divergence> {
        let hash = |(rank, prints): (usize, &Vec<Fingerprint>)| RankHash::new(format!("host{rank}"), prints);
        let ranks: Vec<RankHash> = prints.iter().enumerate().map(hash).collect();
        let difference = first_difference(&ranks, prints);
        assert_eq!(agree(&ranks), difference.is_none(), "the short comparison finds what the long one does");
        difference
    }

    #[test]
    fn the_odd_rank_of_three_is_named_and_of_two_both() {
        let of = |hash: &str| vec![print("a", WHOLE, "0"), print("b", WHOLE, hash), print("c", WHOLE, hash)];
        assert_eq!(found(&[of("1"), of("1"), of("1")]), None);
        let odd = found(&[of("1"), of("2"), of("1")]).expect("one differs");
        assert_eq!((odd.name.as_str(), odd.odd.as_slice(), odd.further), ("b", &[1][..], 1));
        assert_eq!((odd.ranks, odd.hosts), (vec![0, 1, 2], vec!["host1".to_owned()]));
        let both = found(&[of("1"), of("2")]).expect("they differ");
        assert_eq!((both.odd, both.ranks), (vec![], vec![0, 1]));
        assert_eq!(both.hosts, ["host0", "host1"]);
    }

    #[test]
    fn shards_are_compared_among_ranks_that_have_the_same() {
        let of = |rank: usize, hash: &str| {
            let part = HeldPart { shard: Some(rank % 2), ..WHOLE };
            vec![print("a", part, hash), print("b", WHOLE, "0")]
        };
        let equal = [of(0, "1"), of(1, "2"), of(2, "1"), of(3, "2"), of(4, "1"), of(5, "2")];
        assert_eq!(found(&equal), None);
        let mut odd = equal;
        odd[3] = of(3, "3");
        let odd = found(&odd).expect("one differs");
        assert_eq!((odd.odd, odd.ranks), (vec![3], vec![1, 3, 5]));
    }
}
