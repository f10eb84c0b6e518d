//! Messages about the end of a run and of its learning-rate schedule, which `--steps` does not move.

use super::environment::Environment;
use crate::config::ScheduleKind;

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

    /// Returns a warning if steps after `step` would have a learning rate of 0: the cosine has ended before.
    pub(super) fn steps_without_rate(&self, step: u64) -> Option<String> {
        let (plan, schedule) = (&self.plan, &self.config.schedule);
        let ends = schedule.kind == ScheduleKind::Cosine && schedule.final_fraction == 0.0;
        let first = plan.horizon.max(step) + 1;
        (ends && first <= plan.stop).then(|| {
            format!(
                "steps {first} to {} have a learning rate of 0: the cosine ends at step {}; {} stretches it",
                plan.stop,
                plan.horizon,
                self.longer(&plan.stop.to_string())
            )
        })
    }

    /// Returns the option that makes a run longer. Runs whose length is in epochs keep it in epochs.
    fn longer(&self, steps: &str) -> String {
        match self.config.train.steps {
            0 => "--set train.epochs=N --epochs 0".to_owned(),
            _ => format!("--set train.steps={steps} --steps 0"),
        }
    }
}
