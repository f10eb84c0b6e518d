//! Evaluations and checkpoints over the run: when they are due, and the measure by which a checkpoint is the best.

use super::goal::Goal;
use super::keys::Config;
use super::layer::Assignment;
use super::validate::Relations;

/// Pairs of keys that both say when something is due: in steps, and in epochs.
const PERIODS: [(&str, &str); 2] =
    [("eval.every", "eval.every_epochs"), ("checkpoint.every", "checkpoint.every_epochs")];

/// A measure of the evaluation, by which checkpoints are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BestMeasure {
    /// Its name in the metrics, such as `test_accuracy`.
    pub name: String,
    /// Its direction; `None` if the name does not tell it.
    pub goal: Option<Goal>,
}

impl BestMeasure {
    /// Reads `test_loss`, or with its direction `min:test_loss` or `max:test_psnr`.
    fn parse(text: &str) -> Self {
        let of = |name: &str, goal| Self { name: name.to_owned(), goal };
        match text.split_once(':') {
            Some(("max", name)) => of(name, Some(Goal::Max)),
            Some(("min", name)) => of(name, Some(Goal::Min)),
            _ => of(text, Goal::of(text)),
        }
    }

    /// True if `value` is better than `other`. NaN is never better.
    pub fn is_better(&self, value: f64, other: f64) -> bool {
        self.goal.is_some_and(|goal| goal.order(value, other).is_lt())
    }
}

impl Config {
    /// Returns the measure of `checkpoint.best`, or, for `train.patience` alone, the test loss; `None` if evaluations are not compared.
    pub fn best_measure(&self) -> Option<BestMeasure> {
        match (self.checkpoint.best.as_str(), self.train.patience) {
            ("", 0) => None,
            ("", _) => Some(BestMeasure::parse("test_loss")),
            (best, _) => Some(BestMeasure::parse(best)),
        }
    }

    /// Checks the keys about evaluations, checkpoints and the best of them.
    pub(super) fn check_selection(&self, relations: &mut Relations<'_>) {
        let (eval, checkpoint, patience) = (&self.eval, &self.checkpoint, self.train.patience);
        let periods = [(eval.every, eval.every_epochs), (checkpoint.every, checkpoint.every_epochs)];
        for ((steps, epochs), (every, every_epochs)) in PERIODS.into_iter().zip(periods) {
            relations.require(
                every == 0 || every_epochs == 0,
                epochs,
                format!("{steps} = {every} and {epochs} = {every_epochs} are both set; set one of them to 0"),
            );
        }
        relations.require(
            eval.enabled || checkpoint.best.is_empty(),
            "checkpoint.best",
            "checkpoint.best compares evaluations, and eval.enabled is false".to_owned(),
        );
        relations.require(
            checkpoint.enabled || checkpoint.best.is_empty(),
            "checkpoint.best",
            "checkpoint.best keeps a checkpoint, and checkpoint.enabled is false".to_owned(),
        );
        let is_evaluated = eval.enabled && (eval.every > 0 || eval.every_epochs > 0);
        relations.require(
            patience == 0 || is_evaluated,
            "train.patience",
            format!("train.patience = {patience} counts evaluations; set eval.every_epochs or eval.every"),
        );
    }

    /// Lets the later of two layers decide when something is due: steps replace epochs, and epochs replace steps. Within one layer both
    /// keys stay, and [`Config::check_selection`] refuses two periods.
    pub(super) fn settle_periods(&mut self, assignments: &[Assignment]) {
        let layer = |key: &str| {
            assignments
                .iter()
                .filter(|assignment| assignment.key == key)
                .map(|assignment| assignment.layer)
                .max()
        };
        let [eval, checkpoint] = PERIODS.map(|(steps, epochs)| (layer(steps), layer(epochs)));
        settle(eval, &mut self.eval.every, &mut self.eval.every_epochs);
        settle(checkpoint, &mut self.checkpoint.every, &mut self.checkpoint.every_epochs);
    }
}

/// Clears the period of the key that an earlier layer set, or that is a default.
fn settle((steps, epochs): (Option<usize>, Option<usize>), every: &mut u64, every_epochs: &mut u64) {
    if steps > epochs {
        *every_epochs = 0;
    } else if epochs > steps && *every_epochs > 0 {
        *every = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Catalogue, Resolved};
    use super::*;

    #[test]
    fn the_direction_follows_from_the_name() {
        let (falls, rises) = (Some(Goal::Min), Some(Goal::Max));
        for (text, name, goal) in [
            ("test_loss", "test_loss", falls),
            ("test_top5_accuracy", "test_top5_accuracy", rises),
            ("test_macro_f1", "test_macro_f1", rises),
            ("test_attributes_frechet_distance", "test_attributes_frechet_distance", falls),
            ("max:test_loss", "test_loss", rises),
            ("min:test_doubt", "test_doubt", falls),
            ("test_doubt", "test_doubt", None),
        ] {
            assert_eq!(BestMeasure::parse(text), BestMeasure { name: name.to_owned(), goal }, "{text}");
        }
        let falls = BestMeasure::parse("test_loss");
        assert!(falls.is_better(1.0, 2.0) && !falls.is_better(2.0, 2.0) && !falls.is_better(f64::NAN, 2.0));
    }

    /// A preset with these lines, and options.
    fn resolve(preset: &str, sets: &[&str]) -> Resolved {
        let catalogue = Catalogue {
            program: "test".to_owned(),
            presets: vec![("base".to_owned(), preset.to_owned())],
            ..Catalogue::default()
        };
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Arc::new(catalogue).resolve(Some("base"), &sets).expect("known keys")
    }

    #[test]
    fn a_run_that_says_steps_keeps_steps() {
        let periods = |preset: &str, sets: &[&str]| {
            let config = resolve(preset, sets).config;
            (config.eval.every, config.eval.every_epochs)
        };
        assert_eq!(periods("", &[]), (0, 1));
        // Also of a run of an earlier version, which was evaluated at its end.
        assert_eq!(periods("[eval]\nevery = 0\n", &[]), (0, 0));
        assert_eq!(periods("[eval]\nevery = 50\n", &[]), (50, 0));
        assert_eq!(periods("", &["eval.every=50"]), (50, 0));
        assert_eq!(periods("[eval]\nevery = 50\n", &["eval.every_epochs=2"]), (0, 2));
        assert_eq!(periods("[eval]\nevery_epochs = 2\n", &["eval.every=50"]), (50, 0));
        assert_eq!(periods("[eval]\nevery_epochs = 3\n", &["eval.every=0"]), (0, 0));
        // The configuration that a run writes holds both keys.
        assert_eq!(periods("[eval]\nevery = 0\nevery_epochs = 1\n", &[]), (0, 1));
        assert_eq!(periods("[eval]\nevery = 7\nevery_epochs = 0\n", &["optim.lr=1"]), (7, 0));
    }

    #[test]
    fn what_contradicts_itself_is_refused_with_its_keys() {
        for (sets, words) in [
            (
                &["eval.every=5", "eval.every_epochs=2"][..],
                "eval.every = 5 and eval.every_epochs = 2 are both set",
            ),
            (
                &["checkpoint.every=5", "checkpoint.every_epochs=2"],
                "checkpoint.every = 5 and checkpoint.every_epochs = 2",
            ),
            (&["checkpoint.best=test_loss", "eval.enabled=false"], "eval.enabled is false"),
            (&["checkpoint.best=test_loss", "checkpoint.enabled=false"], "checkpoint.enabled is false"),
            (&["train.patience=3", "eval.every=0"], "train.patience = 3 counts evaluations"),
        ] {
            let error = resolve("", sets).validate().expect_err("contradicts itself").to_string();
            assert!(error.contains(words), "{sets:?}: {error}");
        }
        for sets in [&["train.patience=3"][..], &["checkpoint.best=test_accuracy", "eval.every=0"]] {
            resolve("", sets).validate().expect("sound");
        }
    }
}
