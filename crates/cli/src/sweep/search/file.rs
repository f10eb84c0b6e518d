//! The sections `[search]` and `best` of a sweep's file.

use serde::{Deserialize, Serialize};

use super::space::Space;
use phalanx_config::Goal;

/// A search: keys whose values are drawn, for each combination of the axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// The method that draws.
    #[serde(default)]
    pub method: Method,
    /// The number of trials.
    pub trials: usize,
    /// The seed of the draws.
    #[serde(default)]
    pub seed: u64,
    /// The number of a run by which trials are compared, as in a table's columns.
    #[serde(default)]
    pub measure: Option<String>,
    /// The direction of the measure; by default that of its name.
    #[serde(default)]
    pub goal: Option<Goal>,
    /// `tpe`: the trials that are drawn at random before.
    #[serde(default = "startup")]
    pub startup: usize,
    /// `tpe`: the candidates, of which the best is taken.
    #[serde(default = "candidates")]
    pub candidates: usize,
    /// The rule that stops trials before their end.
    #[serde(default)]
    pub prune: Option<Prune>,
    /// The values of each key.
    pub keys: Space,
}

/// The defaults of Optuna.
fn startup() -> usize {
    10
}

fn candidates() -> usize {
    24
}

/// The method by which trials are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Independent uniform draws.
    Random,
    /// The tree-structured Parzen estimator (Bergstra et al. 2011).
    #[default]
    Tpe,
}

impl Method {
    /// Returns the name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Tpe => "tpe",
        }
    }
}

/// The rule by which trials are stopped that are worse than others at the same step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prune {
    /// The rule.
    pub kind: PruneKind,
    /// The first step at which a trial can be stopped.
    pub after: u64,
    /// `median`: steps between the decisions.
    #[serde(default)]
    pub every: Option<u64>,
    /// `halving`: the factor between the steps of decisions; one in this many trials goes on.
    #[serde(default)]
    pub factor: Option<u64>,
    /// `median`: the finished trials without which none is stopped.
    #[serde(default)]
    pub startup: Option<usize>,
    /// The number in `metrics.jsonl` that is compared; by default the measure of the search.
    #[serde(default)]
    pub measure: Option<String>,
    /// The direction of this measure; by default that of its name.
    #[serde(default)]
    pub goal: Option<Goal>,
}

/// A rule that stops trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PruneKind {
    /// Worse than the median of the finished trials (Golovin et al. 2017).
    Median,
    /// Asynchronous successive halving (Li et al. 2018).
    Halving,
}

/// The measure by which the best row of a sweep without a search is found.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// The number of a run.
    pub measure: String,
    /// Its direction; by default that of its name.
    #[serde(default)]
    pub goal: Option<Goal>,
}

/// Returns the direction of a measure, or the remedy if its name does not tell it.
fn goal_of(section: &str, measure: &str, goal: Option<Goal>) -> Result<Goal, String> {
    goal.or_else(|| Goal::of(measure)).ok_or_else(|| {
        format!("{section} does not know if `{measure}` should rise or fall; add goal = \"max\" or \"min\"")
    })
}

impl Search {
    /// Returns the measure and its direction.
    pub fn objective(&self) -> Option<(&str, Goal)> {
        let measure = self.measure.as_deref()?;
        Some((measure, self.goal.or_else(|| Goal::of(measure))?))
    }

    /// Returns true if trials depend on the outcomes of earlier ones.
    pub fn learns(&self) -> bool {
        self.method == Method::Tpe || self.prune.is_some()
    }

    /// Returns the settings without the number of trials, for the record: more trials can be added.
    pub fn settings(&self) -> serde_json::Value {
        let mut settings = serde_json::json!(self);
        if let Some(settings) = settings.as_object_mut() {
            settings.remove("trials");
        }
        settings
    }

    /// Refuses settings that no search can have, each with its remedy.
    pub(in crate::sweep) fn check(&self) -> Result<(), String> {
        if self.trials == 0 || self.keys.is_empty() {
            return Err("[search] needs trials above 0, and keys".to_owned());
        }
        for (key, values) in &self.keys {
            values.check().map_err(|problem| format!("[search] {key}: {problem}"))?;
        }
        match &self.measure {
            Some(measure) => drop(goal_of("[search]", measure, self.goal)?),
            None if self.learns() => {
                return Err(format!(
                    "[search] needs a measure for {}, such as measure = \"test_loss\"",
                    if self.prune.is_some() { "prune" } else { "method = \"tpe\"" }
                ));
            }
            None => {}
        }
        if self.candidates == 0 || self.candidates > 10_000 {
            return Err(format!("[search] candidates = {}; it must be from 1 to 10000", self.candidates));
        }
        self.prune.as_ref().map_or(Ok(()), |prune| prune.check(self.measure.as_deref()))
    }
}

impl Prune {
    /// Refuses rules without steps, with the remedy.
    fn check(&self, measure: Option<&str>) -> Result<(), String> {
        let wrong = |problem: &str| Err(format!("[search] prune: {problem}"));
        if self.after == 0 {
            return wrong("after must be at least 1");
        }
        match self.kind {
            PruneKind::Median if self.factor.is_some() => {
                return wrong("factor belongs to kind = \"halving\"");
            }
            PruneKind::Halving if self.every.is_some() || self.startup.is_some() => {
                return wrong("every and startup belong to kind = \"median\"");
            }
            PruneKind::Median if self.every.is_none_or(|every| every == 0) => {
                return wrong("kind = \"median\" needs every, the steps between decisions");
            }
            PruneKind::Halving if self.factor.is_some_and(|factor| factor < 2) => {
                return wrong("factor must be at least 2");
            }
            _ => {}
        }
        let measure = self.measure.as_deref().or(measure).unwrap_or_default();
        goal_of("[search] prune", measure, self.goal).map(drop)
    }

    /// Returns the number that is compared, and its direction, in a search for `objective`.
    pub fn objective<'a>(&'a self, objective: (&'a str, Goal)) -> (&'a str, Goal) {
        match &self.measure {
            None => (objective.0, self.goal.unwrap_or(objective.1)),
            Some(measure) => (measure, self.goal.or_else(|| Goal::of(measure)).unwrap_or(objective.1)),
        }
    }

    /// Returns the steps whose lines are averaged at a decision.
    pub fn window(&self) -> u64 {
        self.every.unwrap_or(self.after)
    }

    /// Returns the factor of successive halving; 4 by default, as in the paper.
    pub fn factor(&self) -> u64 {
        self.factor.unwrap_or(4)
    }

    /// Returns the finished trials without which the median stops none; 5 by default, as in Optuna.
    pub fn startup(&self) -> usize {
        self.startup.unwrap_or(5)
    }
}

impl Best {
    /// Returns the direction of the measure.
    pub fn goal(&self) -> Option<Goal> {
        self.goal.or_else(|| Goal::of(&self.measure))
    }

    /// Refuses a measure whose direction is unknown.
    pub(in crate::sweep) fn check(&self) -> Result<(), String> {
        goal_of("best", &self.measure, self.goal).map(drop)
    }
}
