//! The main facts about a run: model, data, ranks, machine.

use serde::Deserialize as _;
use serde_json::Value;

use super::columns::Column;
use super::numbers::{bytes, joules, seconds, with_unit};
use super::run::RunData;
use super::settings::at;
use phalanx_charts::Unit;
use phalanx_run::{Machine, RunStart, RunStarts, format};

/// A fact: its name and value.
pub(crate) type Fact = (&'static str, String);

/// Formats a JSON value.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the main facts about a run.
pub(crate) fn facts(run: &RunData) -> Vec<Fact> {
    let mut facts: Vec<Fact> = Vec::new();
    let mut add = |name: &'static str, value: Option<String>| {
        facts.extend(value.filter(|value| !value.is_empty()).map(|value| (name, value)));
    };
    let set = |key: &str| run.setting(key).map(str::to_owned);
    add("model", run.summary_value("model").map(text).or_else(|| set("model.kind")));
    add("parameters", run.number("parameters").map(|count| format::count(count as u64)));
    let data = set("data.kind").map(|kind| match set("data.path").filter(|path| !path.is_empty()) {
        Some(path) => format!("{kind}, {path}"),
        None => kind,
    });
    add("data", data);
    add("strategy", run.summary_value("strategy").map(text).or_else(|| set("train.strategy")));
    add("ranks", ranks(run));
    add("hosts", hosts(run));
    add("device", set("train.device"));
    add("precision", set("train.precision"));
    add("batch", batch(run));
    add("steps", Some(steps(run)));
    add(
        "optimizer",
        set("optim.kind")
            .map(|kind| format!("{kind}, learning rate {}", set("optim.lr").unwrap_or_default())),
    );
    add("schedule", set("schedule.kind"));
    add("seed", set("train.seed"));
    add("time", run.number("wall_seconds").map(seconds));
    add("machine", machine(run));
    add("program", at(&run.summary, "machine.version").map(|version| format!("version {}", text(version))));
    let starts = starts(run);
    add("started", starts.first().map(started));
    add("command", starts.first().map(RunStart::command_line));
    let resumed = starts.last().filter(|_| starts.len() > 1);
    add("resumed", resumed.map(|start| format!("{}: {}", started(start), start.command_line())));
    add("commit", starts.last().and_then(|start| start.git.as_ref()).map(ToString::to_string));
    add("energy", energy(run));
    add(
        "built on",
        run.folder
            .join("first")
            .join("config.toml")
            .is_file()
            .then(|| "the run in its folder first/, which has a separate report".to_owned()),
    );
    add(
        "trace",
        run.folder
            .join("trace.json")
            .is_file()
            .then(|| "trace.json; open it in Perfetto or chrome://tracing".to_owned()),
    );
    add("folder", Some(run.folder.display().to_string()));
    facts
}

/// Returns the starts of a run; none if their record is missing or damaged.
fn starts(run: &RunData) -> Vec<RunStart> {
    RunStarts::read(&run.folder.join("run.json")).map(|all| all.starts).unwrap_or_default()
}

fn started(start: &RunStart) -> String {
    format!("{} on {}, in {}", start.time, start.host, start.folder)
}

fn ranks(run: &RunData) -> Option<String> {
    let trained = run
        .number("world_size")
        .map(|count| count.to_string())
        .or_else(|| run.setting("train.ranks").map(str::to_owned))?;
    let servers = run.number("servers").filter(|count| *count > 0.0);
    let threads = run.setting("train.threads").filter(|threads| *threads != "0");
    Some(format!(
        "{trained}{}{}",
        servers.map_or_else(String::new, |count| format!(" and {count} servers")),
        threads.map_or_else(String::new, |threads| format!(
            ", {threads} {} each",
            if threads == "1" { "thread" } else { "threads" }
        ))
    ))
}

fn hosts(run: &RunData) -> Option<String> {
    let mut hosts: Vec<(String, usize)> = Vec::new();
    for (_, line) in run.tails.last_usage() {
        let host = line.get("host")?.as_str()?;
        match hosts.iter_mut().find(|(known, _)| known == host) {
            Some((_, ranks)) => *ranks += 1,
            None => hosts.push((host.to_owned(), 1)),
        }
    }
    let known: Vec<String> = hosts.iter().map(|(host, ranks)| format!("{host} ({ranks})")).collect();
    (!known.is_empty()).then(|| known.join(", "))
}

fn batch(run: &RunData) -> Option<String> {
    let batch = run.setting("train.global_batch")?;
    let parts = run.setting("train.accumulate").filter(|parts| *parts != "1");
    Some(format!(
        "{batch}{}",
        parts.map_or_else(String::new, |parts| format!(" in {parts} micro-batches a rank"))
    ))
}

fn steps(run: &RunData) -> String {
    let done = run.number("step").unwrap_or_default().max(run.last_step as f64);
    let planned =
        run.setting("train.steps").and_then(|steps| steps.parse::<u64>().ok()).filter(|steps| *steps > 0);
    let epochs = run
        .number("epochs")
        .map_or_else(String::new, |epochs| format!(" ({} epochs)", format::number(epochs)));
    match planned {
        Some(planned) => format!("{} of {}{epochs}", format::count(done as u64), format::count(planned)),
        None => format!("{}{epochs}", format::count(done as u64)),
    }
}

fn machine(run: &RunData) -> Option<String> {
    let machine = Machine::deserialize(run.summary_value("machine")?).ok()?;
    let memory =
        machine.memory_bytes.map_or_else(String::new, |memory| format!(", {}", bytes(memory as f64)));
    Some(format!("{}, {} cores{memory}, {}", machine.processor, machine.cores, machine.system))
}

/// Formats the total energy and its source.
fn energy(run: &RunData) -> Option<String> {
    let known = energies(run);
    let parts: Vec<String> = known
        .iter()
        .map(|energy| match energy.joules {
            Some(sum) => format!("{} {} ({})", energy.of, joules(sum), energy.kind),
            None => format!("{} {}", energy.of, energy.kind),
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The energy of a kind of device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Energy {
    /// `CPUs` or `GPUs`.
    pub(crate) of: &'static str,
    /// `measured`, `estimated` or `absent`.
    pub(crate) kind: String,
    /// The model of the estimate, or the reason why the value is absent.
    pub(crate) model: String,
    /// The joules.
    pub(crate) joules: Option<f64>,
}

/// Returns the energy in a summary.
pub(crate) fn energies(run: &RunData) -> Vec<Energy> {
    let of = |(name, of): (&str, &'static str)| {
        let energy = run.summary_value(&format!("energy.{name}"))?;
        Some(Energy {
            of,
            kind: at(energy, "kind").map(text)?,
            model: at(energy, "model").map(text).unwrap_or_default(),
            joules: at(energy, "joules").and_then(Value::as_f64),
        })
    };
    [("cpu", "CPUs"), ("gpu", "GPUs")].into_iter().filter_map(of).collect()
}

/// A headline number: name, value, and the key for live updates, if any.
pub(crate) type Headline = (String, String, Option<String>);

/// Parts of the names of test measures that tell how good a model is.
const QUALITY: [&str; 11] = [
    "accuracy",
    "precision",
    "recall",
    "f1",
    "auc",
    "top",
    "frechet_distance",
    "score",
    "error_rate",
    "perplexity",
    "bleu",
];

/// Returns the headline numbers of a run.
pub(crate) fn headlines(run: &RunData) -> Vec<Headline> {
    let mut found: Vec<Headline> = Vec::new();
    let last = |name: &str| run.columns.get(&format!("metrics/{name}")).and_then(Column::last);
    // Measures of how good the model is come first.
    let is_quality = |name: &&str| {
        let of_model = name.starts_with("test_") && !name.starts_with("test_real_");
        of_model && QUALITY.iter().any(|part| name.contains(part))
    };
    let mut quality: Vec<&str> = run.columns.under("metrics/").filter(is_quality).collect();
    quality.sort_by_key(|name| !name.ends_with("accuracy"));
    let losses = run.columns.under("metrics/").filter(|name| name.ends_with("loss")).take(4);
    let leads = |name: &str| Some(name) == run.headline.as_deref();
    let others = quality.into_iter().take(6).chain(losses).filter(|name| !leads(name));
    found.extend(run.headline.as_deref().into_iter().chain(others).filter_map(|name| {
        let key = Some(format!("metrics/{name}"));
        Some((name.replace('_', " "), format::number(last(name)?), key))
    }));
    let best = run.number("best.value").zip(run.summary_value("best.measure").and_then(Value::as_str));
    found.extend(best.map(|(value, measure)| {
        let step = run.number("best.step").unwrap_or_default();
        let name = format!("best {}, step {}", measure.replace('_', " "), format::count(step as u64));
        (name, format::number(value), None)
    }));
    let speed = run.number("samples_per_second").or_else(|| last("samples_per_s"));
    let key = run.number("samples_per_second").is_none().then(|| "metrics/samples_per_s".to_owned());
    let unit = run.summary_value("units.unit").and_then(Value::as_str).zip(run.number("units.per_second"));
    found.extend(match unit {
        Some((unit, rate)) => Some((format!("{unit} per second"), format::number(rate), None)),
        None => speed.map(|speed| ("samples per second".to_owned(), format::number(speed), key)),
    });
    let share = run.number("arithmetic.peak_share").map(|share| format!("{:.0} %", 100.0 * share));
    found.extend(share.map(|share| ("arithmetic, of peak".to_owned(), share, None)));
    let time = run.number("wall_seconds").or_else(|| {
        let losses = run.columns.get("metrics/loss")?;
        losses.seconds.last().copied().filter(|seconds| seconds.is_finite())
    });
    found.extend(time.map(|time| ("time".to_owned(), seconds(time), None)));
    let peak = run.ranks().iter().filter_map(|rank| rank.get("peak_memory_bytes")?.as_f64()).reduce(f64::max);
    found.extend(peak.map(|peak| ("peak memory of a rank".to_owned(), bytes(peak), None)));
    let each = run.number("energy.joules_per_sample");
    found.extend(each.map(|joules| ("energy per sample".to_owned(), with_unit(joules, Unit::Joules), None)));
    let watts = run.number("energy.mean_watts");
    found.extend(watts.map(|watts| ("mean power".to_owned(), with_unit(watts, Unit::Watts), None)));
    found
}
