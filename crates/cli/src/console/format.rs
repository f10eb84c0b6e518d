//! Lines of steps and events.

use phalanx_run::format::{bytes, count, number};

use phalanx_trainer::engine::{Event, StepReport, named};

/// Renders the line of a step, without its number.
pub fn step(report: &StepReport) -> String {
    let mut parts = Vec::new();
    for phase in &report.phases {
        parts.push(format!("{} {}", named(&phase.name, "loss"), number(phase.loss)));
        let measures = phase.measures.iter();
        parts
            .extend(measures.map(|(name, value)| format!("{} {}", named(&phase.name, name), number(*value))));
    }
    for update in &report.updates {
        let name = |what: &str| named(&update.network, what);
        parts.push(format!("{} {}", name("lr"), number(update.learning_rate)));
        parts.extend(update.gradient_norm.map(|norm| format!("{} {}", name("grad"), number(norm))));
        parts.extend(update.left_out.then(|| format!("{} not finite, left out", name("gradients"))));
    }
    parts.push(format!("{} images/s", count(report.images_per_second.round() as u64)));
    parts.extend(report.memory_bytes.map(|memory| format!("mem {}", bytes(memory))));
    parts.push(format!("data {:.0}%", 100.0 * report.data_share));
    parts.extend(report.communication_share.map(|share| format!("comm {:.0}%", 100.0 * share)));
    parts.join("  ")
}

/// The line of an event.
pub fn event(event: &Event) -> String {
    match event {
        Event::Evaluated { step, measures } => {
            let measures: Vec<String> =
                measures.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
            format!("step {step}: test {}", measures.join("  "))
        }
        Event::Saved { step, path, stalled } => {
            format!(
                "step {step}: checkpoint {} ({:.3} s of standing still)",
                path.display(),
                stalled.as_secs_f64()
            )
        }
        Event::Sampled { step, path } => format!("step {step}: samples {}", path.display()),
        Event::Resumed { step, path } => format!("resumed after step {step} from {}", path.display()),
        Event::Collapsed { step, problem } => format!("warning: step {step}: {problem}"),
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
