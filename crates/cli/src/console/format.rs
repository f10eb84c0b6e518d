//! Lines of steps and events.

use phalanx_run::UnitRate;
use phalanx_run::format::{number, of_peak, speed, waiting};

use phalanx_trainer::engine::{Event, StepReport, named};

/// Measures that only the files and the end of a run show: their harmonic mean is on the line.
const DETAILS: [&str; 2] = ["macro_precision", "macro_recall"];

/// Renders the line of a step, without its number. The measure that leads comes first.
pub fn step(report: &StepReport, headline: Option<&str>) -> String {
    let mut parts = Vec::new();
    for phase in &report.phases {
        let measure =
            |(name, value): &(String, f64)| format!("{} {}", named(&phase.name, name), number(*value));
        let leads = |(name, _): &&(String, f64)| Some(name.as_str()) == headline;
        parts.extend(phase.measures.iter().filter(leads).map(measure));
        parts.push(format!("{} {}", named(&phase.name, "loss"), number(phase.loss)));
        parts.extend(phase.measures.iter().filter(|measure| !leads(measure)).map(measure));
    }
    for update in &report.updates {
        let name = |what: &str| named(&update.network, what);
        parts.push(format!("{} {}", name("lr"), number(update.learning_rate)));
        parts.extend(update.gradient_norm.map(|norm| format!("{} {}", name("grad"), number(norm))));
        parts.extend(update.left_out.then(|| format!("{} not finite, left out", name("gradients"))));
    }
    parts.push(match &report.units {
        Some(UnitRate { unit, per_second }) => speed(unit, *per_second),
        None => speed("samples", report.samples_per_second),
    });
    parts.extend(report.arithmetic.and_then(|rate| rate.peak_share).map(of_peak));
    parts.extend(waiting(Some(report.data_share), report.communication_share));
    parts.join("  ")
}

/// The line of an event.
pub fn event(event: &Event) -> String {
    match event {
        Event::Evaluated { step, measures, is_best } => {
            let shown = measures.iter().filter(|(name, _)| !DETAILS.contains(&name.as_str()));
            let measures: Vec<String> =
                shown.map(|(name, value)| format!("{name} {}", number(*value))).collect();
            let best = if *is_best { "  (the best so far)" } else { "" };
            format!("step {step}: test {}{best}", measures.join("  "))
        }
        Event::Saved { path, stalled, .. } => {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            format!("checkpoint {name} (paused training for {} ms)", stalled.as_millis())
        }
        Event::Sampled { step, path } => format!("step {step}: samples {}", path.display()),
        Event::Resumed { step, path } => format!("resumed after step {step} from {}", path.display()),
        Event::Warned { step, problem } => format!("warning: step {step}: {problem}"),
        Event::Died { rank, host, from_step, left } => {
            format!(
                "warning: rank {rank} on {host} died; {left} workers share its work from step {from_step} on"
            )
        }
        Event::Left { rank, host, from_step, ranks } => {
            format!("rank {rank} on {host} left; {} from step {from_step}", continue_by(*ranks))
        }
        Event::Joined { rank, from_step, ranks } => {
            format!("rank {rank} takes part from step {from_step} on, one of {ranks}")
        }
        Event::Note(text) => text.clone(),
    }
}

/// The number of ranks that continue, with its verb.
fn continue_by(ranks: usize) -> String {
    if ranks == 1 { "1 rank continues".to_owned() } else { format!("{ranks} ranks continue") }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use phalanx_trainer::engine::{PhaseReport, UpdateReport};

    use super::*;

    #[test]
    fn lines_are_short_and_the_headline_leads() {
        let measures = vec![("kl".to_owned(), 2.0), ("accuracy".to_owned(), 0.5)];
        let phase = PhaseReport { loss: 0.25, measures, ..PhaseReport::default() };
        let update = UpdateReport { learning_rate: 0.002, ..UpdateReport::default() };
        let report = StepReport {
            phases: vec![phase],
            updates: vec![update],
            samples_per_second: 1234.4,
            data_share: 0.01,
            communication_share: Some(0.2),
            ..StepReport::default()
        };
        let expected = "accuracy 0.5000  loss 0.2500  kl 2.000  lr 0.002000  1,234 samples/s  20% waiting for communication";
        assert_eq!(step(&report, Some("accuracy")), expected);
        assert!(step(&report, None).starts_with("loss 0.2500  kl 2.000  accuracy 0.5000  lr "));
        let (step, path) = (400, PathBuf::from("runs/x/checkpoints/step-00000400"));
        let saved = Event::Saved { step, path, stalled: Duration::from_micros(21_400) };
        assert_eq!(event(&saved), "checkpoint step-00000400 (paused training for 21 ms)");
        let measures = [("accuracy", 0.5), ("loss", 1.0), ("macro_recall", 0.5)];
        let measures = measures.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let evaluated = Event::Evaluated { step, measures, is_best: true };
        assert_eq!(event(&evaluated), "step 400: test accuracy 0.5000  loss 1.000  (the best so far)");
    }
}
