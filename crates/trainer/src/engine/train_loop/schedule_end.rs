//! Messages about the end of a run and of its learning-rate schedule, which `--steps` does not move.

use super::environment::Environment;
use crate::engine::optimize::warm_up;
use phalanx_config::{Config, ScheduleKind};

impl Environment<'_> {
    /// Returns the message that all steps of the plan are done, with the way to train longer.
    pub(super) fn nothing_to_do(&self, step: u64) -> String {
        let (stop, horizon) = (self.plan.stop, self.plan.horizon);
        let further = match stop < horizon {
            true => format!("--steps N goes on up to step {horizon}"),
            false => format!("{} makes the run longer, with its learning-rate schedule", self.longer("N")),
        };
        format!("nothing to do: {step} of {stop} steps are done; {further}")
    }

    /// Returns a warning if steps after `step` would have a learning rate of 0 in one of these networks: its schedule has ended at 0 before.
    pub(super) fn steps_without_rate(&self, step: u64, networks: &[&str]) -> Option<String> {
        let plan = &self.plan;
        let (first, whose) = (plan.horizon.max(step) + 1, ended(self.config, networks)?);
        (first <= plan.stop).then(|| {
            format!(
                "steps {first} to {} have a learning rate of 0{whose}: the schedule ends at step {}; {} stretches it",
                plan.stop,
                plan.horizon,
                self.longer(&plan.stop.to_string())
            )
        })
    }

    /// Returns a note if the warm-up of one of these networks is shorter than configured.
    pub(super) fn shorter_warm_up(&self, networks: &[&str]) -> Option<String> {
        networks.iter().find_map(|name| {
            let config = self.config.for_network(name);
            let (configured, steps) = (config.schedule.warmup_steps, warm_up(&config, &self.plan));
            let key = if name.is_empty() { String::new() } else { format!("{name}.") };
            let plural = if steps == 1 { "" } else { "s" };
            (steps < configured).then(|| {
                format!(
                    "the warm-up takes {steps} step{plural}, a tenth of the run: {key}schedule.warmup_steps is {configured}"
                )
            })
        })
    }

    /// Returns the options by which the run goes on: to the end of its schedules, or twice as long with longer schedules.
    pub(super) fn twice_as_long(&self) -> String {
        let (train, plan) = (&self.config.train, &self.plan);
        if plan.stop < plan.horizon {
            return format!("--steps {}", plan.horizon);
        }
        match (train.steps, train.tokens) {
            (0, 0) => format!("--set train.epochs={} --epochs 0", 2 * train.epochs),
            (0, tokens) => format!("--set train.tokens={} --steps 0", 2 * tokens),
            (steps, _) => self.longer(&(2 * steps).to_string()),
        }
    }

    /// Returns the option that makes a run longer. Runs whose length is in epochs keep it in epochs.
    fn longer(&self, steps: &str) -> String {
        match (self.config.train.steps, self.config.train.tokens) {
            (0, 0) => "--set train.epochs=N --epochs 0".to_owned(),
            (0, _) => "--set train.tokens=N --steps 0".to_owned(),
            _ => format!("--set train.steps={steps} --steps 0"),
        }
    }
}

/// Names the networks whose learning rate is 0 after the end of the schedule: with a cosine, a line or another decay down to 0. Other
/// schedules keep a rate: a constant one its own, one of steps and one cycle the last, and a decay with `schedule.final_fraction` that
/// fraction. `None` if all keep one.
fn ended(config: &Config, networks: &[&str]) -> Option<String> {
    let ends = |name: &&&str| {
        let schedule = config.for_network(name).schedule;
        let decays = [ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Stable];
        decays.contains(&schedule.kind) && schedule.final_fraction == 0.0
    };
    let ended: Vec<String> = networks.iter().filter(ends).map(|name| format!("`{name}`")).collect();
    match ended.len() {
        0 => None,
        all if all == networks.len() => Some(String::new()),
        _ => Some(format!(" in {}", ended.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use toml::Value;

    use super::*;

    #[test]
    fn decays_to_zero_end_and_other_schedules_keep_a_rate() {
        let mut config = Config::default();
        for (kind, fraction, is_ended) in [
            (ScheduleKind::Cosine, 0.0, true),
            (ScheduleKind::Cosine, 0.1, false),
            (ScheduleKind::Constant, 0.0, false),
            (ScheduleKind::Step, 0.0, false),
            (ScheduleKind::InverseRoot, 0.0, false),
            (ScheduleKind::Linear, 0.0, true),
            (ScheduleKind::Linear, 0.1, false),
            (ScheduleKind::Stable, 0.0, true),
            (ScheduleKind::OneCycle, 0.0, false),
            (ScheduleKind::RangeTest, 0.0, false),
        ] {
            (config.schedule.kind, config.schedule.final_fraction) = (kind, fraction);
            assert_eq!(ended(&config, &[""]), is_ended.then(String::new), "{kind:?} {fraction}");
        }
        // A network can have its own.
        let own = [("kind".to_owned(), Value::String("cosine".to_owned()))];
        let own = own.map(|(key, value)| (format!("schedule.{key}"), value)).into();
        config.networks.insert("critic".to_owned(), own);
        assert_eq!(ended(&config, &["generator", "critic"]).as_deref(), Some(" in `critic`"));
    }
}
