//! The outcome of a run of a sweep: its numbers by name, and its loss over steps and seconds.

use std::collections::BTreeMap;
use std::path::Path;

use super::energy::EnergySource;
use super::file::Target;
use phalanx_run::{EnergySummary, Line, RankSummary, RunError, RunFolder, Summary, read_metrics};

/// A loss, and when it was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Steps that a rank has taken by then, on average.
    pub step: f64,
    /// Seconds of training.
    pub seconds: f64,
    /// The loss.
    pub loss: f64,
}

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Its numbers.
    pub numbers: BTreeMap<String, f64>,
    /// Its training loss, in the order of seconds, as means over some steps.
    pub curve: Vec<Point>,
    /// The source of its energy numbers; `None` if its summary has none.
    pub energy: Option<EnergySource>,
    /// The step of the decision to stop it before its end.
    pub pruned: Option<u64>,
}

/// Numbers that every run may have, besides those of `metrics` in its summary, and what they are.
pub const NUMBERS: &[(&str, &str)] = &[
    ("ranks", "ranks that trained"),
    ("steps", "steps taken"),
    ("seconds", "seconds of training steps, until the last rank was done"),
    ("first_done", "seconds of training steps of the rank that was done first"),
    ("samples_per_second", "images over all ranks and a second of training"),
    ("step_ms", "milliseconds of a step: the median of those that have a line each"),
    ("steps_per_second", "1000 over the milliseconds of a step"),
    (
        "predicted_step_ms",
        "milliseconds of a step by the cost model, from steps of one rank alone and the simulated link",
    ),
    (
        "predicted_communication_ms",
        "milliseconds of a step in which anything is on its way, by the cost model",
    ),
    (
        "predicted_exposed",
        "share of the step's time in which ranks wait for communication, by the cost model",
    ),
    ("mb_sent", "megabytes that a rank sends in a step"),
    ("exposed", "share of the steps' time in which ranks wait for communication"),
    ("epoch_seconds", "seconds of training steps for a pass over the images"),
    ("held_mib", "parameters, gradients and optimizer state that a rank holds, in MiB"),
    ("cpu", "cores that the ranks kept busy, all together, on average over the run"),
    ("utilisation", "share of the machine's cores that the ranks kept busy, on average over the run"),
    ("gpu_utilisation", "share of the time in which the ranks' GPUs were busy, on average over the run"),
    ("gpu_mib", "the most memory of a rank's GPU, as all programs take it, in MiB"),
    ("joules", "joules of the whole run, where its energy was measured or estimated (log.cpu_watts)"),
    ("watts", "watts that the run took on average: its joules over its seconds"),
    ("joules_per_image", "joules of the whole run for each image that it trained on"),
    ("peak_mib", "the most memory of a rank's process, in MiB"),
    ("waited", "seconds in which ranks were held up by others, all ranks together"),
    ("staleness", "updates between a pull and its push, on average"),
    ("staleness_max", "the most updates between a pull and its push"),
    ("spread", "the most steps that two ranks were apart"),
    ("steps_to_target", "steps of a rank until the target loss was reached"),
    ("seconds_to_target", "seconds of training until the target loss was reached"),
];

impl Outcome {
    /// Reads the folder of a run that is finished. Losses are means over the target's window, or ten steps.
    ///
    /// # Errors
    /// If its summary or metrics cannot be read.
    pub fn read(folder: &Path, target: Option<&Target>) -> Result<Self, RunError> {
        let folder = RunFolder::open(folder)?;
        let summary = Summary::read(&folder.summary())?;
        let (name, window) = target.map_or(("loss", 10), |target| (target.loss.as_str(), target.window));
        let lines = match folder.metrics_by_rank().exists() {
            true => read_metrics(&folder.metrics_by_rank())?,
            false => read_metrics(&folder.metrics())?,
        };
        let curve = curve(&lines, name, window);
        let mut numbers = numbers(&summary);
        numbers.extend(of_gpus(&folder, summary.ranks.len()));
        // A run that was resumed counts in its summary from there, and in its lines from the start.
        let last = lines.iter().filter_map(|line| line.number("seconds")).reduce(f64::max);
        numbers.extend(last.map(|seconds| ("seconds".to_owned(), seconds)));
        let epoch = numbers.get("seconds").map(|seconds| seconds / summary.epochs);
        numbers.extend(
            epoch.filter(|seconds| seconds.is_finite()).map(|seconds| ("epoch_seconds".to_owned(), seconds)),
        );
        if let Some(seconds) = median_step(&lines) {
            numbers.insert("step_ms".to_owned(), 1e3 * seconds);
            numbers.insert("steps_per_second".to_owned(), 1.0 / seconds);
        }
        if let Some(target) = target {
            let reached = curve.iter().find(|point| point.loss <= target.below);
            numbers.extend(reached.map(|point| ("steps_to_target".to_owned(), point.step)));
            numbers.extend(reached.map(|point| ("seconds_to_target".to_owned(), point.seconds)));
        }
        let energy = summary.energy.as_ref().map(EnergySource::of);
        Ok(Self { numbers, curve, energy, pruned: None })
    }

    /// Reads the folder of a run that a rule has stopped: the last value of each number up to `step`. The end of the run
    /// depends on the time at which it read the request, so it does not count.
    ///
    /// # Errors
    /// If its metrics cannot be read.
    pub fn read_pruned(folder: &Path, step: u64, target: Option<&Target>) -> Result<Self, RunError> {
        let folder = RunFolder::open(folder)?;
        let (name, window) = target.map_or(("loss", 10), |target| (target.loss.as_str(), target.window));
        let mut lines = read_metrics(&folder.metrics())?;
        lines.retain(|line| line.step() <= step);
        let all = lines.iter().flat_map(Line::numbers).map(|(name, value)| (name.to_owned(), value));
        let mut numbers: BTreeMap<String, f64> = all.collect();
        numbers.insert("steps".to_owned(), step as f64);
        Ok(Self { numbers, curve: curve(&lines, name, window), energy: None, pruned: Some(step) })
    }
}

fn numbers(summary: &Summary) -> BTreeMap<String, f64> {
    let measured = summary.metrics.iter().filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
    let mut numbers: BTreeMap<String, f64> = measured.collect();
    let ranks = &summary.ranks;
    let mut set = |name: &str, value: Option<f64>| {
        numbers.extend(value.map(|value| (name.to_owned(), value)));
    };
    let of = |value: fn(&RankSummary) -> f64| ranks.iter().map(value);
    set("ranks", Some(ranks.len() as f64));
    set("steps", Some(summary.step as f64));
    set("seconds", of(|rank| rank.step_seconds).reduce(f64::max));
    set("first_done", of(|rank| rank.step_seconds).reduce(f64::min));
    set("samples_per_second", Some(summary.samples_per_second));
    let (count, steps) = (ranks.len() as f64, summary.step as f64);
    set("mb_sent", Some(of(|rank| rank.step_bytes_sent as f64).sum::<f64>() / count / steps / 1e6));
    let whole: f64 = of(|rank| rank.step_seconds).sum();
    set("exposed", Some(of(|rank| rank.communication_exposed_seconds).sum::<f64>() / whole));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let held = |rank: &RankSummary| rank.parameter_bytes + rank.gradient_bytes + rank.optimizer_bytes;
    set("held_mib", ranks.iter().map(held).max().map(mib));
    let peak = ranks.iter().filter_map(|rank| rank.peak_memory_bytes).max();
    set("peak_mib", peak.map(mib));
    // Of ranks that are threads the first speaks for all.
    let busy = ranks.iter().filter_map(|rank| rank.cpu_seconds).reduce(|a, b| a + b);
    let cores = busy.filter(|_| summary.wall_seconds > 0.0).map(|busy| busy / summary.wall_seconds);
    set("cpu", cores);
    let machine = summary.machine.cores as f64;
    set("utilisation", cores.filter(|_| machine > 0.0).map(|cores| cores / machine));
    let joules = |part: fn(&EnergySummary) -> Option<f64>| summary.energy.as_ref().and_then(part);
    let known = [joules(|energy| energy.cpu.joules), joules(|energy| energy.gpu.joules)];
    set("joules", known.into_iter().flatten().reduce(|a, b| a + b));
    set("watts", summary.energy.as_ref().and_then(|energy| energy.mean_watts));
    set("joules_per_image", summary.energy.as_ref().and_then(|energy| energy.joules_per_sample));
    let kept: Vec<_> = ranks.iter().filter_map(|rank| rank.synchrony.as_ref()).collect();
    if !kept.is_empty() {
        set("waited", Some(kept.iter().map(|kept| kept.waited_seconds).sum()));
        set("spread", kept.iter().map(|kept| kept.clock_spread as f64).reduce(f64::max));
        // Every server counts the pushes of all workers to it, so they are counted alike.
        let counts = |kept: &[u64]| -> (f64, f64) {
            let pairs = kept.iter().enumerate();
            pairs.fold((0.0, 0.0), |(sum, all), (old, count)| {
                (sum + old as f64 * *count as f64, all + *count as f64)
            })
        };
        let (sum, all) =
            kept.iter().map(|kept| counts(&kept.staleness)).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
        set("staleness", (all > 0.0).then(|| sum / all));
        let most = kept.iter().filter_map(|kept| kept.staleness.iter().rposition(|count| *count > 0)).max();
        set("staleness_max", most.map(|most| most as f64));
    }
    numbers.retain(|_, value| value.is_finite());
    numbers
}

/// Reads the usage of GPUs while ranks trained; nothing without GPUs.
fn of_gpus(folder: &RunFolder, ranks: usize) -> Vec<(String, f64)> {
    let (mut busy, mut most) = (Vec::new(), None::<f64>);
    for rank in 0..ranks {
        // Runs of earlier builds have no such files.
        let lines = read_metrics(&folder.usage(rank)).unwrap_or_default();
        busy.extend(lines.iter().filter_map(|line| line.number("gpu_percent")));
        let memory = lines.iter().filter_map(|line| line.number("gpu_memory_bytes")).reduce(f64::max);
        most = most.into_iter().chain(memory).reduce(f64::max);
    }
    let mean = (!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64 / 100.0);
    let named = |name: &str, value: Option<f64>| value.map(|value| (name.to_owned(), value));
    let mib = most.map(|bytes| bytes / f64::from(1 << 20));
    named("gpu_utilisation", mean).into_iter().chain(named("gpu_mib", mib)).collect()
}

/// The median over the lines but the first, which warms up, of the seconds of a step; nothing where each rank has lines of its own.
fn median_step(lines: &[Line]) -> Option<f64> {
    if lines.iter().any(|line| line.number("rank").is_some()) {
        return None;
    }
    let told: Vec<(f64, f64)> =
        lines.iter().filter_map(|line| Some((line.step() as f64, line.number("seconds")?))).collect();
    let mut each: Vec<f64> = told
        .windows(2)
        .map(|pair| (pair[1].1 - pair[0].1) / (pair[1].0 - pair[0].0))
        .filter(|seconds| seconds.is_finite() && *seconds > 0.0)
        .collect();
    each.sort_by(f64::total_cmp);
    let middle = each.len() / 2;
    Some(if each.len() % 2 == 1 { each[middle] } else { f64::midpoint(*each.get(middle)?, each[middle - 1]) })
}

/// Losses in the order of seconds. Where each rank has lines of its own, a line is a part of a step.
fn curve(lines: &[Line], name: &str, window: usize) -> Vec<Point> {
    let ranks = lines.iter().filter_map(|line| line.number("rank")).fold(0.0, f64::max) as usize + 1;
    let mut told: Vec<Point> = lines
        .iter()
        .filter_map(|line| {
            Some(Point {
                step: line.step() as f64,
                seconds: line.number("seconds")?,
                loss: line.number(name)?,
            })
        })
        .filter(|point| point.loss.is_finite())
        .collect();
    told.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    if lines.iter().any(|line| line.number("rank").is_some()) {
        for (at, point) in told.iter_mut().enumerate() {
            point.step = (at + 1) as f64 / ranks as f64;
        }
    }
    let window = window * ranks;
    let mean = |part: &[Point]| part.iter().map(|point| point.loss).sum::<f64>() / part.len() as f64;
    (0..told.len())
        .map(|at| Point { loss: mean(&told[(at + 1).saturating_sub(window)..=at]), ..told[at] })
        // Of fewer than a window nothing is known yet.
        .skip(window.min(told.len()).saturating_sub(1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_run::{EnergyKind, EnergyPart, Machine, SyncSummary};

    #[test]
    fn losses_of_ranks_are_taken_in_the_order_of_time() {
        // Rank 0 takes a step a second, rank 1 one in two.
        let line = |rank: u64, step: u64, seconds: f64, loss: f64| {
            Line::new(step).with("rank", rank).with("seconds", seconds).with("loss", loss)
        };
        let lines = [line(0, 1, 1.0, 8.0), line(1, 1, 2.0, 6.0), line(0, 2, 2.1, 4.0), line(1, 2, 4.0, 2.0)];
        let points: Vec<_> =
            curve(&lines, "loss", 1).iter().map(|point| (point.step, point.seconds, point.loss)).collect();
        assert_eq!(points, [(1.0, 2.0, 7.0), (1.5, 2.1, 5.0), (2.0, 4.0, 3.0)]);
        let lines: Vec<_> = (1..=4)
            .map(|step| Line::new(step).with("seconds", 0.5 * step as f64).with("loss", step))
            .collect();
        let points: Vec<_> =
            curve(&lines, "loss", 2).iter().map(|point| (point.step, point.seconds, point.loss)).collect();
        assert_eq!(points, [(2.0, 1.0, 1.5), (3.0, 1.5, 2.5), (4.0, 2.0, 3.5)]);
        assert!(curve(&lines, "critic_loss", 2).is_empty());
        assert_eq!(median_step(&lines), Some(0.5));
        assert_eq!(median_step(&lines[..1]), None);
        // Every second step has a line, and one was slow.
        let lines = [(2, 1.0), (4, 3.0), (6, 13.0), (8, 15.0)]
            .map(|(step, seconds): (u64, f64)| Line::new(step).with("seconds", seconds));
        assert_eq!(median_step(&lines), Some(1.0));
    }

    #[test]
    fn numbers_are_over_all_ranks() {
        let rank = |rank: usize, seconds: f64, staleness: Vec<u64>| RankSummary {
            rank,
            step_seconds: seconds,
            step_bytes_sent: 20_000_000,
            parameter_bytes: 1 << 20,
            gradient_bytes: (1 + rank as u64) << 20,
            cpu_seconds: (rank == 0).then_some(6.0),
            communication_exposed_seconds: 1.0,
            synchrony: Some(SyncSummary {
                staleness,
                waited_seconds: 0.5,
                clock_spread: 3,
                ..SyncSummary::default()
            }),
            ..RankSummary::default()
        };
        let ranks = vec![rank(0, 4.0, vec![2, 1, 0]), rank(1, 6.0, vec![1, 1, 1, 0])];
        let part = |joules| EnergyPart { kind: EnergyKind::Measured, joules, ..EnergyPart::default() };
        let energy =
            Some(EnergySummary { cpu: part(Some(30.0)), gpu: part(Some(12.0)), ..EnergySummary::default() });
        let machine = Machine { cores: 6, ..Machine::default() };
        let numbers =
            numbers(&Summary { step: 10, wall_seconds: 4.0, ranks, energy, machine, ..Summary::default() });
        for (name, value) in [
            ("ranks", 2.0),
            ("steps", 10.0),
            ("seconds", 6.0),
            ("first_done", 4.0),
            ("mb_sent", 2.0),
            ("held_mib", 3.0),
            ("cpu", 1.5),
            ("utilisation", 0.25),
            ("joules", 42.0),
            ("exposed", 0.2),
            ("waited", 1.0),
            ("spread", 3.0),
            ("staleness", 4.0 / 6.0),
            ("staleness_max", 2.0),
        ] {
            assert_eq!(numbers.get(name), Some(&value), "{name}");
        }
        assert!(!numbers.contains_key("peak_mib"), "no rank reports it");
    }

    #[test]
    fn what_gpus_did_is_over_all_ranks_and_lines() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), "run").expect("made");
        assert!(of_gpus(&folder, 2).is_empty());
        for (rank, percent) in [(0, [50, 70]), (1, [90, 30])] {
            let line = |percent: i32| {
                format!("{{\"step\":1,\"gpu_percent\":{percent},\"gpu_memory_bytes\":{}}}\n", percent << 20)
            };
            std::fs::write(folder.usage(rank), percent.map(line).concat()).expect("writes");
        }
        let expected = [("gpu_utilisation".to_owned(), 0.6), ("gpu_mib".to_owned(), 90.0)];
        assert_eq!(of_gpus(&folder, 2), expected);
        // On a machine without one the key is there, and null.
        std::fs::write(folder.usage(0), "{\"step\":1,\"gpu_percent\":null}\n").expect("writes");
        assert!(of_gpus(&folder, 1).is_empty());
    }
}
