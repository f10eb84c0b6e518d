//! The loss of a table's runs, over steps and over seconds.

use super::file::Target;
use super::outcome::{Outcome, Point};
use super::table::Outcomes;
use super::trials::{Table, Trial};
use phalanx_run::{Panel, Series, panels_svg};

/// The size of a panel in pixels.
const SIZE: (f64, f64) = (460.0, 280.0);
/// Points that a line has at most.
const POINTS: usize = 200;

/// Draws the training losses of a table's runs, of each configuration that of the first seed: a column of panels for each combination
/// of the axes but the first, whose choices are the lines; over steps above, over seconds below. `None` if no run is finished.
pub fn curves(table: &Table, outcomes: &Outcomes, target: Option<&Target>) -> Option<String> {
    let mut groups: Vec<(String, Vec<(&Trial, &Outcome)>)> = Vec::new();
    for trial in &table.trials {
        let outcome = trial.runs.first().and_then(|run| outcomes[*run].as_ref()?.as_ref().ok());
        let Some(outcome) = outcome.filter(|outcome| !outcome.curve.is_empty()) else { continue };
        let others: Vec<String> = table
            .axes
            .iter()
            .zip(&trial.choices)
            .skip(1)
            .map(|(axis, choice)| format!("{axis}: {choice}"))
            .collect();
        let name = others.join(", ");
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, group)) => group.push((trial, outcome)),
            None => groups.push((name, vec![(trial, outcome)])),
        }
    }
    if groups.is_empty() {
        return None;
    }
    let panels = |x: &str, of: fn(&Point) -> f64| {
        let panel = |(name, group): &(String, Vec<(&Trial, &Outcome)>)| Panel {
            title: name.clone(),
            x: x.to_owned(),
            series: group.iter().map(|(trial, outcome)| series(trial, outcome, of)).collect(),
            mark: target.map(|target| (target.below, "target".to_owned())),
        };
        groups.iter().map(panel).collect::<Vec<_>>()
    };
    let mut all = panels("steps of a rank", |point| point.step);
    all.extend(panels("seconds", |point| point.seconds));
    let title = format!("{}: training loss", table.title);
    Some(panels_svg(&title, &all, groups.len(), SIZE))
}

fn series(trial: &Trial, outcome: &Outcome, x: fn(&Point) -> f64) -> Series {
    let every = outcome.curve.len().div_ceil(POINTS).max(1);
    let last = outcome.curve.len() - 1;
    let points = outcome.curve.iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last);
    let name = trial.choices.first().cloned().unwrap_or_else(|| "loss".to_owned());
    Series { name, points: points.map(|(_, point)| (x(point), point.loss)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panel_for_each_way_and_a_line_for_each_choice() {
        let point = |at: u32| Point {
            step: f64::from(at),
            seconds: 0.1 * f64::from(at),
            loss: 1.0 / f64::from(at + 1),
        };
        let finished = || Some(Ok(Outcome { curve: (0..1000).map(point).collect(), ..Outcome::default() }));
        let outcomes = [finished(), finished(), finished(), Some(Err("no".to_owned())), None];
        let trial = |choices: [&str; 2], run| Trial {
            choices: choices.map(String::from).to_vec(),
            runs: vec![run],
            ..Trial::default()
        };
        let table = Table {
            title: "paces".into(),
            axes: vec!["strategy".into(), "pace".into()],
            trials: vec![
                trial(["ddp", "even"], 0),
                trial(["ddp", "straggler"], 1),
                trial(["ssp", "even"], 2),
                trial(["ssp", "straggler"], 3),
                trial(["asp", "even"], 4),
            ],
            ..Table::default()
        };
        let target = Target { loss: "loss".into(), below: 0.1, window: 1 };
        let svg = curves(&table, &outcomes, Some(&target)).expect("some are finished");
        assert_eq!(svg.matches("<polyline").count(), 6, "over steps and seconds");
        assert_eq!(svg.matches(">target<").count(), 4);
        assert!(svg.contains("pace: straggler") && svg.len() < 60_000, "{}", svg.len());
        assert_eq!(curves(&table, &[None, None, None, None, None], None), None);
    }
}
