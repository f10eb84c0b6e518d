//! Where each rank of a new world is, told to all, and what follows from it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::Run;
use super::super::losses::Told;
use crate::engine::TrainError;
use crate::engine::distributed::{Before, StopReason};
use phalanx_checkpoint::{Chosen, Held, MODEL, Piece, choose};
use phalanx_run::{DeadRank, WorldChange};

/// What a rank holds of the state after a step.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) step: u64,
    /// Which elements, and what the index of a checkpoint would say.
    pub(super) pieces: Vec<Piece>,
    pub(super) state: Map<String, Value>,
}

impl From<&Held> for Version {
    fn from(held: &Held) -> Self {
        let pieces = held.pieces.iter().map(|held| held.piece.clone()).collect();
        Self { step: held.step, pieces, state: held.state.clone() }
    }
}

/// Where a rank is.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Standing {
    /// Whether it has just come.
    pub(super) is_new: bool,
    /// Steps that it has done.
    pub(super) reached: u64,
    /// What it holds, of one step or of several; nothing where that was changed in part and there are no copies.
    pub(super) versions: Vec<Version>,
    /// The last step of which it has done all that follows.
    pub(super) followed: u64,
    /// The step of a checkpoint that was not complete.
    pub(super) unsaved: Option<u64>,
    /// What it has seen evaluated after which step, if that may have to be written.
    pub(super) evaluated: Option<(u64, Vec<(String, f64)>)>,
    /// What it knows of losses: its own, and what rank 0 was told.
    pub(super) told: Vec<Bits>,
    /// What the first rank knows: up to which step metrics are written, and whether samples of its step are missing.
    pub(super) written: u64,
    pub(super) lacks_samples: bool,
    /// What ranks had agreed to stop for.
    pub(super) stops: Option<StopReason>,
    /// What newcomers cannot know: how often worlds have changed, who has died, and seconds of training, before this process began and
    /// since.
    pub(super) meetings: u64,
    pub(super) dead: Vec<DeadRank>,
    pub(super) changes: Vec<WorldChange>,
    pub(super) seconds: [f64; 2],
}

impl Standing {
    /// What it holds of the state after a step.
    pub(super) fn version(&self, step: u64) -> Option<&Version> {
        self.versions.iter().find(|version| version.step == step)
    }
}

/// What a rank has told of its losses, to the bit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bits {
    rank: usize,
    step: u64,
    seconds: u64,
    shards: [usize; 2],
    sums: Vec<u64>,
}

impl From<&Told> for Bits {
    fn from(told: &Told) -> Self {
        Self {
            rank: told.rank,
            step: told.step,
            seconds: told.seconds.to_bits(),
            shards: [told.shards.start, told.shards.end],
            sums: told.sums.iter().map(|sum| sum.to_bits()).collect(),
        }
    }
}

impl From<&Bits> for Told {
    fn from(bits: &Bits) -> Self {
        Self {
            rank: bits.rank,
            step: bits.step,
            seconds: f64::from_bits(bits.seconds),
            shards: bits.shards[0]..bits.shards[1],
            sums: bits.sums.iter().map(|sum| f64::from_bits(*sum)).collect(),
        }
    }
}

/// The newest step from which all can go on, and who gives what of the state after it.
pub(super) struct Common {
    pub(super) step: u64,
    /// Nothing if every rank has everything.
    pub(super) given: Option<Vec<Chosen>>,
}

/// Finds that step: of it everything that is called by one of `names` must be there.
pub(super) fn common(all: &[Standing], names: &[String]) -> Option<Common> {
    let versions = all.iter().flat_map(|standing| &standing.versions);
    let mut steps: Vec<u64> = versions.map(|version| version.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let wanted = || names.iter().map(|name| (MODEL, name.as_str()));
    for step in steps.into_iter().rev() {
        let of = |standing: &Standing| {
            standing.version(step).map(|version| version.pieces.clone()).unwrap_or_default()
        };
        let pieces: Vec<Vec<Piece>> = all.iter().map(of).collect();
        let Some(chosen) = choose(&pieces, wanted()) else { continue };
        let has_all = |own: &Vec<Piece>| choose(std::slice::from_ref(own), wanted()).is_some();
        let given = (!pieces.iter().all(has_all)).then_some(chosen);
        return Some(Common { step, given });
    }
    None
}

/// What ranks have told of a step, each once, in the order of their numbers, scaled to the whole if some have told nothing.
pub(super) fn told_of(all: &[Standing], step: u64, ranks: usize, logical: Option<usize>) -> Vec<Told> {
    let mut told: Vec<Told> = all
        .iter()
        .flat_map(|standing| &standing.told)
        .filter(|bits| bits.step == step)
        .map(Told::from)
        .collect();
    told.sort_by_key(|told| (told.shards.start, told.rank));
    told.dedup_by_key(|told| told.rank);
    let parts = match logical {
        Some(shards) => (told.iter().map(|told| told.shards.len()).sum::<usize>(), shards),
        None => (told.len(), ranks),
    };
    match parts {
        (there, whole) if there == 0 || there == whole => told,
        // The mean is over those who took part, however they share what there was.
        (there, whole) => {
            let factor = whole as f64 / there as f64;
            for told in &mut told {
                let numbers = told.sums.len() / told.shards.len().max(1);
                let rows = told.sums.chunks_exact(numbers.max(1));
                let sums = rows.fold(vec![0.0; numbers], |mut sums, row| {
                    sums.iter_mut().zip(row).for_each(|(sum, more)| *sum += more * factor);
                    sums
                });
                (told.sums, told.shards) = (sums, 0..0);
            }
            told
        }
    }
}

impl Run<'_> {
    /// Where this rank is, in the world that it has come to from another one, or as a newcomer.
    pub(super) fn standing_in_new_world(&mut self, before: Option<&Before>) -> Result<Standing, TrainError> {
        let Some(elastic) = self.elastic.as_ref().filter(|elastic| before.is_some() && !elastic.is_new)
        else {
            return Ok(Standing { is_new: true, ..Standing::default() });
        };
        let versions: Vec<Version> = elastic.held.iter().map(Version::from).collect();
        let step = elastic.reached;
        let followed = self.followed.min(step);
        let unsaved = self.saver.interrupt().or(self.unsaved);
        let written = self.lines_until(step)?.last().map_or(0, phalanx_run::Line::step);
        let lacks_samples = self.lacks_samples(step);
        let own = self.elastic.iter().flat_map(|elastic| &elastic.told).map(Bits::from);
        let mut told: Vec<Bits> = own.collect();
        if let Some(before) = before {
            told.extend(self.losses.heard(&before.control).iter().map(Bits::from));
            self.stops = self.stops.take().or_else(|| super::super::left::stop_of(&before.control));
        }
        let changes = self.elastic.as_ref().map(|elastic| elastic.changes.clone()).unwrap_or_default();
        Ok(Standing {
            is_new: false,
            reached: step,
            versions,
            followed,
            unsaved,
            evaluated: self.evaluated.clone(),
            told,
            written,
            lacks_samples,
            stops: self.stops.clone(),
            meetings: self.distributed.meetings(),
            dead: self.dead.clone(),
            changes,
            seconds: [self.seconds_before, self.meter.whole().steps.as_secs_f64()],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_checkpoint::Region;

    fn standing(step: u64, start: usize, end: usize) -> Standing {
        let piece = Piece {
            kind: MODEL.to_owned(),
            name: "w".to_owned(),
            dtype: "f32".to_owned(),
            shape: vec![4],
            region: Region::from(start..end),
            file: String::new(),
            key: "w".to_owned(),
        };
        let version = Version { step, pieces: vec![piece], ..Version::default() };
        Standing { versions: vec![version], ..Standing::default() }
    }

    #[test]
    fn the_newest_step_of_which_everything_is_there_counts() {
        let names = ["w".to_owned()];
        let find = |all: &[Standing]| common(all, &names).map(|common| (common.step, common.given));
        assert_eq!(find(&[standing(5, 0, 4), standing(5, 0, 4)]), Some((5, None)), "all have all");
        let one = |rank| Some(vec![Chosen { rank, at: 0 }]);
        assert_eq!(find(&[standing(5, 0, 4), standing(6, 0, 4)]), Some((6, one(1))), "one is ahead");
        assert_eq!(find(&[standing(5, 0, 4), Standing::default()]), Some((5, one(0))), "one has come");
        let halves = Some(vec![Chosen { rank: 0, at: 0 }, Chosen { rank: 1, at: 0 }]);
        assert_eq!(find(&[standing(5, 0, 2), standing(5, 2, 4)]), Some((5, halves)));
        assert_eq!(find(&[standing(5, 0, 2), standing(6, 2, 4)]), None, "no step is whole");
        let mut both = standing(6, 0, 2);
        both.versions.extend(standing(5, 0, 2).versions);
        let halves = Some(vec![Chosen { rank: 0, at: 0 }, Chosen { rank: 1, at: 0 }]);
        assert_eq!(find(&[both, standing(5, 2, 4)]), Some((5, halves)), "the older one is");
        assert_eq!(find(&[Standing::default()]), None);
    }

    #[test]
    fn losses_are_those_of_all_or_of_those_who_have_told_theirs() {
        let told = |rank: usize, step: u64, shards: std::ops::Range<usize>, sums: &[f64]| {
            Bits::from(&Told { rank, step, seconds: 0.1, shards, sums: sums.to_vec() })
        };
        let of = |told: Vec<Bits>| Standing { told, ..Standing::default() };
        let both = [
            of(vec![told(4, 7, 0..0, &[0.1]), told(4, 8, 0..0, &[9.0])]),
            of(vec![told(1, 7, 0..0, &[0.3])]),
        ];
        let whole = Told::whole(&told_of(&both, 7, 2, None)).expect("told");
        assert_eq!((whole.sums, whole.seconds), (vec![0.3 + 0.1], 0.1));
        // Of three one has told nothing.
        let partly = Told::whole(&told_of(&both, 7, 3, None)).expect("told");
        assert!((partly.sums[0] - 0.6).abs() < 1e-12);
        let logical =
            [of(vec![told(0, 7, 0..2, &[1.0, 10.0, 2.0, 20.0])]), of(vec![told(2, 7, 3..4, &[4.0, 40.0])])];
        let partly = Told::whole(&told_of(&logical, 7, 3, Some(4))).expect("told");
        assert!(
            (partly.sums[0] - 7.0 * 4.0 / 3.0).abs() < 1e-12
                && (partly.sums[1] - 70.0 * 4.0 / 3.0).abs() < 1e-9
        );
        assert!(told_of(&logical, 9, 3, Some(4)).is_empty());
    }
}
