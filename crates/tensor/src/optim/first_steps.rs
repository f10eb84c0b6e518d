//! The steps before the first update of each parameter, for optimizers whose steps depend on their number.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::store::ParamBucket;

/// The number of steps that an optimizer had taken before its first update of each parameter. It is 0 unless a parameter was
/// frozen before: its step count then begins with its first update, as `torch.optim` counts.
#[derive(Debug, Default)]
pub(super) struct FirstSteps {
    /// By parameter.
    before: BTreeMap<String, u64>,
    /// The buckets whose parameters are all known.
    known: BTreeSet<usize>,
}

/// Elements that were first updated after the same number of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FirstStepRange {
    pub(super) range: Range<usize>,
    pub(super) before: u64,
}

impl FirstSteps {
    /// Records the parameters that are updated for the first time, after `steps` steps.
    pub(super) fn note(&mut self, params: &[ParamBucket], steps: u64) {
        for param in params.iter().filter(|param| param.trainable() && !param.is_frozen()) {
            if self.known.insert(param.index()) {
                for entry in param.entries() {
                    self.before.entry(entry.name.clone()).or_insert(steps);
                }
            }
        }
    }

    /// The steps before the first update, of parameters with some.
    pub(super) fn late(&self) -> BTreeMap<String, u64> {
        self.before
            .iter()
            .filter(|(_, steps)| **steps > 0)
            .map(|(name, steps)| (name.clone(), *steps))
            .collect()
    }

    /// Adds parameters whose state was loaded. Those without a count had their first update in step 1.
    pub(super) fn add(&mut self, names: impl Iterator<Item = String>) {
        for name in names {
            self.before.entry(name).or_insert(0);
        }
    }

    /// Replaces all counts. Parameters without one are updated for the first time later.
    pub(super) fn load(&mut self, before: BTreeMap<String, u64>) {
        *self = Self { before, known: BTreeSet::new() };
    }

    /// Splits owned elements of a bucket by their first updates.
    pub(super) fn split(&self, param: &ParamBucket, range: Range<usize>) -> Vec<FirstStepRange> {
        if self.before.values().all(|steps| *steps == 0) {
            return vec![FirstStepRange { range, before: 0 }];
        }
        let mut parts: Vec<FirstStepRange> = Vec::new();
        for entry in param.owned_entries() {
            let part = entry.range.start.max(range.start)..entry.range.end.min(range.end);
            let before = self.before.get(&entry.name).copied().unwrap_or(0);
            match parts.last_mut() {
                _ if part.is_empty() => {}
                Some(last) if last.before == before => last.range.end = part.end,
                _ => parts.push(FirstStepRange { range: part, before }),
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{BuildOptions, Init, NamePattern, ParamRules, StoreBuilder};

    #[test]
    fn parameters_that_come_later_are_counted_from_their_first_update() {
        let rules = ParamRules {
            frozen: vec![NamePattern::new("a").expect("text")],
            unfreezes: true,
            ..ParamRules::default()
        };
        let builder = StoreBuilder::new(BuildOptions { rules: Arc::new(rules), ..BuildOptions::default() });
        for block in ["a", "b"] {
            let scope = builder.root().pp(block).block();
            scope.param("w", 4, Init::ZEROS).expect("a new name");
            scope.param("v", 2, Init::ZEROS).expect("a new name");
        }
        let store = builder.build().expect("small");
        let params = store.buckets();
        assert_eq!(params.len(), 2, "parameters that are trained later have a bucket of their own");
        assert!(params[0].is_frozen() && !params[1].is_frozen());
        let mut first = FirstSteps::default();
        first.note(params, 0);
        assert!(first.late().is_empty());
        params[0].set_frozen(false);
        first.note(params, 7);
        first.note(params, 8);
        let late = BTreeMap::from([("a.v".to_owned(), 7), ("a.w".to_owned(), 7)]);
        assert_eq!(first.late(), late);
        let part = |range, before| FirstStepRange { range, before };
        assert_eq!(first.split(&params[0], 1..6), [part(1..6, 7)]);
        assert_eq!(first.split(&params[1], 0..6), [part(0..6, 0)]);
        // A checkpoint may have parameters of one bucket with different counts.
        first.load(BTreeMap::from([("a.w".to_owned(), 7), ("a.v".to_owned(), 9)]));
        assert_eq!(first.split(&params[0], 0..6), [part(0..4, 7), part(4..6, 9)]);
        params[0].set_owned(3..5).expect("all are in memory");
        assert_eq!(first.split(&params[0], 0..2), [part(0..1, 7), part(1..2, 9)]);
    }
}
