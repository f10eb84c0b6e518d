//! Whether ranks still hold the same of what they are to hold alike.
//!
//! Replicas take the same steps from the same values, so that they have the same bits after every step; where they do not, a
//! processor, memory or a library has failed without saying so. Of every parameter, and of everything else that is kept alike, a
//! hash is made. First all ranks tell one hash of all of it, and only if those differ which tensors they are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Run;
use crate::engine::TrainError;
use crate::engine::distributed::Distributed;
use crate::engine::error::Divergence;

/// The hash of one tensor, or of the part of it that a rank holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fingerprint {
    /// What it is: parameters, averages, or a kind of the optimizer's state.
    pub(super) kind: String,
    /// The parameter or buffer.
    pub(super) name: String,
    /// Whether every rank holds all of it; otherwise those do that have the same shard.
    pub(super) is_whole: bool,
    pub(super) hash: String,
}

/// What a rank tells of all that it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Told {
    host: String,
    /// Which shard is its own.
    shard: usize,
    /// The hash of what every rank holds.
    whole: String,
    /// That of what ranks with the same shard hold.
    sharded: String,
}

impl Told {
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

/// Whether all that should have told the same have: those of a shard, and all.
fn agree(told: &[Told]) -> bool {
    let of_shard: BTreeMap<usize, &Told> = told.iter().rev().map(|told| (told.shard, told)).collect();
    let first = |told: &Told| of_shard.get(&told.shard).is_none_or(|first| first.sharded == told.sharded);
    told.iter().all(|one| one.whole == told[0].whole && first(one))
}

/// The first tensor that ranks hold differently, and which of them are the odd ones: those apart from the strict majority. There
/// are none if nobody has one. `prints` are those of each rank.
fn first_difference(told: &[Told], prints: &[Vec<Fingerprint>]) -> Option<Divergence> {
    let mut found: Option<Divergence> = None;
    let mut further = 0;
    let mut seen = Vec::new();
    for print in prints.iter().flatten() {
        let Fingerprint { kind, name, is_whole, .. } = print;
        let shards: Vec<Option<usize>> = match is_whole {
            true => vec![None],
            false => {
                let mut shards: Vec<usize> = told.iter().map(|told| told.shard).collect();
                shards.sort_unstable();
                shards.dedup();
                shards.into_iter().map(Some).collect()
            }
        };
        if seen.contains(&(kind, name, is_whole)) {
            continue;
        }
        seen.push((kind, name, is_whole));
        for shard in shards {
            let of = |rank: usize| {
                let mut own = prints[rank].iter();
                own.find(|own| own.kind == *kind && own.name == *name && own.is_whole == *is_whole)
            };
            let members =
                (0..prints.len()).filter(|rank| shard.is_none_or(|shard| told[*rank].shard == shard));
            let mut by_hash: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
            for rank in members {
                by_hash.entry(of(rank).map(|own| own.hash.as_str())).or_default().push(rank);
            }
            if by_hash.len() < 2 {
                continue;
            }
            if found.is_some() {
                further += 1;
                continue;
            }
            let all: usize = by_hash.values().map(Vec::len).sum();
            let major = by_hash.values().find(|ranks| 2 * ranks.len() > all).cloned();
            let ranks: Vec<usize> = {
                let mut ranks: Vec<usize> = by_hash.into_values().flatten().collect();
                ranks.sort_unstable();
                ranks
            };
            let odd: Vec<usize> = match &major {
                Some(major) => ranks.iter().copied().filter(|rank| !major.contains(rank)).collect(),
                None => Vec::new(),
            };
            let named = if odd.is_empty() { &ranks } else { &odd };
            let hosts = named.iter().map(|rank| told[*rank].host.clone()).collect();
            found =
                Some(Divergence { kind: kind.clone(), name: name.clone(), odd, ranks, hosts, further: 0 });
        }
    }
    found.map(|found| Divergence { further, ..found })
}

impl Run<'_> {
    /// Compares what ranks hold alike after a step, if that is due.
    ///
    /// # Errors
    /// [`TrainError::Diverged`] on all ranks if they hold different values.
    pub(super) fn check_replicas(&self) -> Result<(), TrainError> {
        let (every, step) = (self.config.train.check_replicas, self.state.step);
        if every == 0 || step % every != 0 || self.distributed.size() < 2 {
            return Ok(());
        }
        let _checking = tracing::trace_span!(target: "phalanx_trace::evaluation", "check replicas").entered();
        let (shard, prints) = self.state.fingerprints(self.alike_buffers())?;
        match differs(&self.distributed, shard, &prints)? {
            None => Ok(()),
            Some(found) => {
                // Of two nobody can say which is right; then the first of them tells.
                let own = self.distributed.rank();
                let tells = found.odd.first().or(found.ranks.first()).is_some_and(|first| *first == own);
                Err(TrainError::Diverged { step, found: Box::new(found), elsewhere: !tells })
            }
        }
    }

    /// Whether statistics of synchronised batch norm are the same everywhere: a rank that has no samples of a step leaves its own
    /// alone, until rank 0's are taken over.
    fn alike_buffers(&self) -> bool {
        self.config.data.tail == phalanx_data::Tail::Drop
    }
}

/// What ranks differ in, if they do. All ranks call this at the same place, and find the same.
fn differs(
    distributed: &Distributed,
    shard: usize,
    prints: &[Fingerprint],
) -> Result<Option<Divergence>, TrainError> {
    let wrong = |error: serde_json::Error| TrainError::Setup(format!("hashes of replicas: {error}"));
    let own = Told::new(distributed.host().1, shard, prints);
    let told = distributed.gather_text(&serde_json::to_string(&own).map_err(wrong)?)?;
    let told: Vec<Told> =
        told.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>().map_err(wrong)?;
    if agree(&told) {
        return Ok(None);
    }
    let all = distributed.gather_text(&serde_json::to_string(prints).map_err(wrong)?)?;
    let all: Vec<Vec<Fingerprint>> =
        all.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>().map_err(wrong)?;
    Ok(first_difference(&told, &all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(name: &str, is_whole: bool, hash: &str) -> Fingerprint {
        Fingerprint { kind: "model".to_owned(), name: name.to_owned(), is_whole, hash: hash.to_owned() }
    }

    fn found(shards: &[usize], prints: &[Vec<Fingerprint>]) -> Option<Divergence> {
        let told = |(rank, prints): (usize, &Vec<Fingerprint>)| {
            Told::new(format!("host{rank}"), shards[rank], prints)
        };
        let told: Vec<Told> = prints.iter().enumerate().map(told).collect();
        let difference = first_difference(&told, prints);
        assert_eq!(agree(&told), difference.is_none(), "the short comparison finds what the long one does");
        difference
    }

    #[test]
    fn the_odd_one_of_three_is_named_and_of_two_both() {
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
    fn shards_are_compared_among_those_who_have_the_same() {
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
