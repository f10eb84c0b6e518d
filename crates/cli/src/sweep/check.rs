//! Checks of the file of a sweep.

use super::compared::known;
use super::file::{Axis, Part, SweepFile};

/// Columns that are predicted from other rows.
const PREDICTED: [&str; 3] = ["predicted_step_ms", "predicted_communication_ms", "predicted_exposed"];

/// More are a slip: they would take weeks.
const MOST_TRAININGS: usize = 10_000;

/// The titles of axes, and their choices.
type AxisChoices = Vec<(String, Vec<String>)>;

/// A check of a table with these axes and columns.
type TableCheck<'a> = &'a dyn Fn(&AxisChoices, &[String]) -> Result<(), String>;

impl SweepFile {
    /// Refuses comparisons that no table can make, and published numbers that none can show.
    fn check_compared(&self) -> Result<(), String> {
        let of = |part: &Part| -> (AxisChoices, Vec<String>) {
            let choices =
                |axis: &Axis| axis.all_choices().into_iter().map(|choice| choice.name).collect::<Vec<_>>();
            let axes = self.axes_of(part);
            let axes = axes.iter().map(|axis| (axis.title().to_owned(), choices(axis))).collect();
            (axes, self.columns_of(part))
        };
        let parts = self.tables();
        let tables: Vec<_> = parts.iter().map(of).collect();
        for (part, (axes, columns)) in parts.iter().zip(&tables) {
            part.relative.iter().try_for_each(|relative| relative.check(axes, columns))?;
            part.published.iter().try_for_each(|published| published.check(axes, columns))?;
        }
        // What is said of all parts must be right in one of them.
        let any = |check: TableCheck<'_>| {
            let mut all = tables.iter().map(|(axes, columns)| check(axes, columns));
            let first = all.next().unwrap_or(Ok(()));
            if first.is_ok() || all.any(|check| check.is_ok()) { Ok(()) } else { first }
        };
        self.relative.iter().try_for_each(|relative| any(&|axes, columns| relative.check(axes, columns)))?;
        self.published.iter().try_for_each(|published| any(&|axes, columns| published.check(axes, columns)))
    }

    /// Refuses what is to be predicted from nothing, and pictures of what tables do not have.
    fn check_predicted(&self) -> Result<(), String> {
        for part in self.tables() {
            let axes: AxisChoices = self
                .axes_of(&part)
                .iter()
                .map(|axis| {
                    let choices = axis.all_choices().into_iter().map(|choice| choice.name);
                    (axis.title().to_owned(), choices.collect())
                })
                .collect();
            let columns = self.columns_of(&part);
            let some = |axis: &&Axis| axis.all_choices().iter().any(|choice| choice.predicted);
            let is_predicted = self.axes_of(&part).iter().any(some)
                || columns.iter().any(|column| PREDICTED.contains(&column.as_str()));
            if is_predicted {
                let predict = self.predict_of(&part);
                if predict.is_empty() {
                    let problem = "something is predicted; [predict] names the choices of the run that it is predicted from";
                    return Err(problem.to_owned());
                }
                known(predict, &axes).map_err(|problem| format!("[predict]: {problem}"))?;
            }
            let Some(scaling) = &part.scaling else { continue };
            if !axes.iter().any(|(title, _)| *title == scaling.over) {
                return Err(format!("scaling: there is no axis `{}`", scaling.over));
            }
            let named =
                std::iter::once(&scaling.speedup).chain(&scaling.predicted).chain(&scaling.communication);
            for column in named {
                if !columns.contains(column) {
                    let all = columns.join(", ");
                    return Err(format!("scaling: there is no column `{column}`; the columns: {all}"));
                }
            }
        }
        Ok(())
    }

    /// Refuses searches that contradict the rest of the file.
    fn check_search(&self) -> Result<(), String> {
        if let Some(best) = &self.best {
            best.check()?;
        }
        let Some(search) = &self.search else { return Ok(()) };
        search.check()?;
        if self.best.is_some() {
            return Err("best is for sweeps without a search; [search] has its own measure".to_owned());
        }
        if search.prune.is_some() && self.seeds.len() > 1 {
            return Err("[search] prune needs a single seed: it stops runs, not means of several".to_owned());
        }
        let axes = || self.axes.iter().chain(self.parts.iter().flat_map(|part| &part.axes));
        if axes().any(|axis| axis.all_choices().iter().any(|choice| choice.predicted)) {
            return Err("[search] trains its runs; leave out choices that are only predicted".to_owned());
        }
        let varied = axes().filter_map(|axis| axis.key.as_ref()).find(|key| search.keys.contains_key(*key));
        match varied {
            Some(key) => Err(format!("`{key}` is a key of [search] and of an axis; leave out one of them")),
            None if search.keys.contains_key("train.seed") => {
                Err("[search] cannot draw train.seed; `seeds` lists its values".to_owned())
            }
            None => Ok(()),
        }
    }

    /// Returns the number of trainings; those that parts share are counted twice.
    fn trainings(&self) -> usize {
        let of = |part: &Part| {
            let choices = |axis: &&Axis| axis.values.len() + axis.predicted.len() + axis.choices.len();
            self.axes_of(part).iter().map(choices).fold(1_usize, usize::saturating_mul)
        };
        let rows = self.tables().iter().map(of).fold(0, usize::saturating_add);
        let drawn = self.search.as_ref().map_or(1, |search| search.trials);
        rows.saturating_mul(drawn).saturating_mul(self.seeds.len())
    }

    /// Refuses settings that no sweep can have, each with its remedy.
    pub(super) fn check(&self) -> Result<(), String> {
        self.axes.iter().chain(self.parts.iter().flat_map(|part| &part.axes)).try_for_each(check_axis)?;
        self.check_compared()?;
        self.check_predicted()?;
        if self.seeds.is_empty() {
            return Err("seeds is empty; leave it out for seed 0".to_owned());
        }
        self.check_search()?;
        let trainings = self.trainings();
        if trainings > MOST_TRAININGS {
            return Err(format!(
                "these are {trainings} trainings; at most {MOST_TRAININGS} can be asked for"
            ));
        }
        if let Some(target) = &self.target
            && (!target.below.is_finite() || target.window == 0)
        {
            return Err("[target] needs a finite loss `below`, and a window of at least 1".to_owned());
        }
        Ok(())
    }
}

/// Refuses an axis whose values or choices contradict each other.
fn check_axis(axis: &Axis) -> Result<(), String> {
    let title = axis.title();
    match &axis.key {
        None if axis.name.is_empty() => {
            return Err("an [[axis]] needs a name with choices, or a key with values".to_owned());
        }
        None if axis.choices.is_empty() => {
            return Err(format!("[[axis]] {title} has no choices; an axis of values needs a key"));
        }
        Some(key) if axis.values.is_empty() => {
            return Err(format!("[[axis]] {key} has no values"));
        }
        Some(key)
            if !axis.times.is_empty()
                && axis.values.iter().chain(&axis.predicted).any(|value| !value.is_integer()) =>
        {
            return Err(format!("[[axis]] {key} has `times`, for which its values must be integers"));
        }
        Some(key) if !axis.choices.is_empty() => {
            return Err(format!("[[axis]] {key} has values and choices; it is one or the other"));
        }
        _ => {}
    }
    if let Some((value, times)) = axis.too_large() {
        return Err(format!("[[axis]] {title}: {value} times what `{times}` says is too large"));
    }
    let choices = axis.all_choices();
    let twice =
        (1..choices.len()).find(|at| choices[..*at].iter().any(|choice| choice.name == choices[*at].name));
    if let Some(at) = twice {
        return Err(format!("[[axis]] {title} has `{}` twice", choices[at].name));
    }
    Ok(())
}
