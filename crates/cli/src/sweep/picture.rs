//! The loss of a table's runs, over steps and over seconds.

use super::file::Target;
use super::outcome::{Outcome, Point};
use super::table::Outcomes;
use super::trials::{Table, Trial};
use phalanx_charts::{Axis, Figure, Level, Panel, Series, Unit};

/// The size of a panel in pixels.
const SIZE: (f64, f64) = (460.0, 280.0);
/// Points that a line has at most.
const POINTS: usize = 200;

/// The most panels in a row that all have their steps above and their seconds below.
const COLUMNS: usize = 3;

/// Draws the training losses of a table's runs, of each configuration that of the first seed: a panel over steps and one over seconds
/// for each combination of the axes but the first, whose choices are the lines. `None` if no run is finished.
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
    let over_steps = (Axis::of("steps of a rank", Unit::Count), (|point| point.step) as fn(&Point) -> f64);
    let over_time = (Axis::of("time", Unit::Seconds), (|point| point.seconds) as fn(&Point) -> f64);
    let panel = |(name, group): &(String, Vec<(&Trial, &Outcome)>), (x, of): &(Axis, fn(&Point) -> f64)| {
        let lines = group.iter().map(|(trial, outcome)| series(trial, outcome, *of)).collect();
        let level = target.map(|target| Level { at: target.below, label: "target".to_owned() });
        Panel { level, ..Panel::lines(name.clone(), x.clone(), Axis::default(), lines) }
    };
    let title = format!("{}: training loss", table.title);
    // Rows of steps and of seconds, or both next to each other if there are many.
    let (columns, panels) = match groups.len() <= COLUMNS {
        true => {
            let row = |over| groups.iter().map(|group| panel(group, over)).collect::<Vec<_>>();
            (groups.len(), [row(&over_steps), row(&over_time)].concat())
        }
        false => {
            let pair = |group| [panel(group, &over_steps), panel(group, &over_time)];
            (2, groups.iter().flat_map(pair).collect())
        }
    };
    Some(Figure::new(title, panels).grid(columns, SIZE).svg())
}

fn series(trial: &Trial, outcome: &Outcome, x: fn(&Point) -> f64) -> Series {
    let every = outcome.curve.len().div_ceil(POINTS).max(1);
    let last = outcome.curve.len() - 1;
    let points = outcome.curve.iter().enumerate().filter(|(at, _)| at % every == 0 || *at == last);
    let name = trial.choices.first().cloned().unwrap_or_else(|| "loss".to_owned());
    Series::new(name, points.map(|(_, point)| (x(point), point.loss)).collect())
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
        assert_eq!(svg.matches("class=\"line").count(), 6 + 2, "over steps and seconds, and in the legend");
        assert_eq!(svg.matches(">target<").count(), 4);
        assert!(svg.contains("pace: straggler") && svg.len() < 60_000, "{}", svg.len());
        assert_eq!(curves(&table, &[None, None, None, None, None], None), None);
        // A run of one logged step is a dot.
        let short = || Some(Ok(Outcome { curve: vec![point(1)], ..Outcome::default() }));
        let svg = curves(&table, &[short(), None, None, None, None], None).expect("one is finished");
        assert_eq!(svg.matches("<circle").count(), 3, "over steps and seconds, and in the legend");
    }
}
