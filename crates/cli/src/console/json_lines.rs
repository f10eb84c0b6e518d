//! A run as JSON, one event a line, for scripts.

use std::fs::File;
use std::io::Write as _;

use phalanx_run::Summary;
use phalanx_trainer::engine::{Event, Observer, Started, StepReport};
use serde_json::{Map, Value, json};

use super::out;

/// Prints each event of a run as a JSON object whose key `event` names its kind. The last one is `finished`. Steps are those that have a line of metrics.
#[derive(Debug, Default)]
pub struct JsonLines {
    /// The destination, if it is not this process's standard output.
    to: Option<File>,
    is_finished: bool,
}

impl JsonLines {
    /// Creates an observer that prints to `to`, or else to standard output.
    pub fn new(to: Option<File>) -> Self {
        Self { to, is_finished: false }
    }

    fn print(&self, value: &Value) {
        match &self.to {
            // A closed output must not end a training.
            Some(to) => drop(writeln!(&mut &*to, "{value}")),
            None => out(&value.to_string()),
        }
    }
}

impl Observer for JsonLines {
    fn started(&mut self, started: &Started) {
        self.print(&json!({
            "event": "started",
            "run": started.folder,
            "name": started.name,
            "model": started.model,
            "parameters": started.parameters,
            "data": started.data,
            "images": started.images,
            "ranks": started.ranks.training,
            "servers": started.ranks.servers,
            "threads": started.ranks.threads,
            "device": started.device,
            "strategy": started.ranks.strategy,
            "tensor_ranks": started.ranks.tensor,
            "stages": started.ranks.stages,
            "step": started.steps.done,
            "steps": started.steps.total,
            "steps_per_epoch": started.steps.per_epoch,
        }));
    }

    fn step(&mut self, report: &StepReport, logged: bool) {
        if logged {
            self.print(&step(report));
        }
    }

    fn event(&mut self, event: &Event) {
        // What follows are commands for people.
        if !self.is_finished {
            self.print(&value(event));
        }
    }

    fn finished(&mut self, summary: &Summary) {
        let mut object = Map::from_iter([("event".to_owned(), Value::from("finished"))]);
        if let Ok(Value::Object(summary)) = serde_json::to_value(summary) {
            object.extend(summary);
        }
        self.print(&Value::Object(object));
        self.is_finished = true;
    }
}

/// Returns a step with the names that its line of `metrics.jsonl` has.
fn step(report: &StepReport) -> Value {
    let mut object = Map::from_iter([("event".to_owned(), Value::from("step"))]);
    object.extend(report.metrics().values().clone());
    object.insert("steps".to_owned(), report.total.into());
    Value::Object(object)
}

fn value(event: &Event) -> Value {
    match event {
        Event::Evaluated { step, measures, is_best } => {
            let measures: Map<String, Value> =
                measures.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
            json!({"event": "evaluated", "step": step, "measures": measures, "is_best": is_best})
        }
        Event::Saved { step, path, stalled } => {
            json!({"event": "saved", "step": step, "path": path, "paused_seconds": stalled.as_secs_f64()})
        }
        Event::Sampled { step, path } => json!({"event": "sampled", "step": step, "path": path}),
        Event::Resumed { step, path } => json!({"event": "resumed", "step": step, "path": path}),
        Event::Warned { step, problem } => json!({"event": "warned", "step": step, "problem": problem}),
        Event::Died { rank, host, from_step, left } => {
            json!({"event": "died", "rank": rank, "host": host, "from_step": from_step, "ranks": left})
        }
        Event::Left { rank, host, from_step, ranks } => {
            json!({"event": "left", "rank": rank, "host": host, "from_step": from_step, "ranks": ranks})
        }
        Event::Joined { rank, from_step, ranks } => {
            json!({"event": "joined", "rank": rank, "from_step": from_step, "ranks": ranks})
        }
        Event::Note(text) => json!({"event": "note", "text": text}),
    }
}
