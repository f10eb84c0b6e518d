//! What a rank tells of its usage while it trains.

use std::time::Duration;

use super::Run;
use crate::engine::TrainError;
use crate::engine::distributed::{Network, Traffic};
use crate::usage::{CpuEnergy, GpuReading, HeldBytes, Powercap, Sampled, Sampler, Spent};
use phalanx_run::read_metrics;

impl Run<'_> {
    /// Begins to sample what this rank uses, once.
    pub(super) fn sample_usage(&mut self) -> Result<(), TrainError> {
        let distributed = &self.distributed;
        let rank = distributed.first_number(distributed.rank());
        let log = &self.config.log;
        let gpu: Result<Box<dyn Fn() -> GpuReading + Send>, String> = match self.gauge.clone() {
            Some(gauge) => Ok(Box::new(move || gauge.read())),
            None => Err(format!("no GPU computes: {}", distributed.device().describe())),
        };
        let energy = match log.usage_seconds > 0.0 {
            true => CpuEnergy::of(distributed.is_first_of_host(), log.cpu_watts, Powercap::of_host),
            // Counters may have passed their end several times when the run is over.
            false if log.cpu_watts > 0.0 => CpuEnergy::Estimated { watts: log.cpu_watts },
            false => CpuEnergy::Absent("log.usage_seconds = 0: nobody reads counters".to_owned()),
        };
        let whose = Sampled {
            rank,
            host: distributed.host(),
            speaks_for_process: distributed.is_first_of_process(),
            energy,
            gpu,
        };
        let path = self.folder.usage(rank);
        let usage = Sampler::start(&path, Duration::from_secs_f64(log.usage_seconds), whose)?;
        // Rank 0 writes metrics, and knows from them how long the run had trained when it was resumed.
        let lines = read_metrics(&self.folder.metrics()).unwrap_or_default();
        let done = lines.iter().rev().find(|line| line.step() <= self.state.step);
        self.seconds_before = done.and_then(|line| line.number("seconds")).unwrap_or_default();
        let (step, seconds) = (self.state.step, self.seconds_before);
        usage.progress().tell(Spent { step, seconds, ..Spent::default() });
        self.usage = Some(usage);
        Ok(())
    }

    /// Says how far this rank is, what its steps have cost, and, if anybody wants to know, what it holds.
    pub(super) fn tell_usage(&self, step: u64, traffic: &Traffic) {
        let Some(usage) = &self.usage else { return };
        let whole = self.meter.whole();
        usage.progress().tell(Spent {
            step,
            seconds: self.seconds_before + whole.steps.as_secs_f64(),
            step_seconds: whole.steps.as_secs_f64(),
            data_seconds: whole.data.as_secs_f64(),
            communication_exposed_seconds: whole.communication.as_secs_f64(),
            communication_hidden_seconds: whole.busy.saturating_sub(whole.communication).as_secs_f64(),
            network_sent_bytes: traffic.bytes_sent,
            network_received_bytes: traffic.bytes_received,
        });
        usage.progress().hold(|| {
            let [parameters, gradients, optimizer] = self.state.bytes();
            let gathered = self.state.networks().map(Network::peak_gathered_bytes).sum();
            let activations = phalanx_tensor::take_peak_recorded_bytes() as u64;
            HeldBytes { parameters, gradients, optimizer, gathered, activations }
        });
    }
}
