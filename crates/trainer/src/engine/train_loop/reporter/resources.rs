//! The resources that a rank uses while it trains.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::TrainError;

use crate::engine::distributed::{Distributed, Network, Traffic};
use crate::engine::gauge::Gauge;
use crate::engine::train_loop::environment::Environment;
use crate::engine::train_loop::meter::Meter;
use crate::engine::train_loop::state::TrainState;
use phalanx_run::read_metrics;
use phalanx_usage::{
    CpuEnergy, GpuReading, Powercap, ProgressCounters, ResourceUse, SampledRank, Sampler, StateBytes,
};

/// The resources that a rank uses: its GPU and its process.
pub(super) struct Resources {
    gauge: Option<Arc<Gauge>>,
    /// Runs once the rank trains.
    sampler: Option<Sampler>,
}

impl Resources {
    /// Finds the GPU of a rank, if it has one.
    pub(super) fn of(distributed: &Distributed) -> Self {
        Self { gauge: Gauge::of(distributed.device()).map(Arc::new), sampler: None }
    }

    /// Starts the sampler. Returns the seconds of training before this process, as the metrics up to `step` have them.
    pub(super) fn start(
        &mut self,
        env: &Environment<'_>,
        distributed: &Distributed,
        step: u64,
    ) -> Result<f64, TrainError> {
        let rank = distributed.roster().number_of(distributed.rank());
        let log = &env.config.log;
        let gpu: Result<Box<dyn Fn() -> GpuReading + Send>, String> = match self.gauge.clone() {
            Some(gauge) => Ok(Box::new(move || gauge.read())),
            None => Err(format!("no GPU computes: {}", distributed.device().describe())),
        };
        let energy = match log.usage_seconds > 0.0 {
            true => CpuEnergy::of(distributed.is_first_of_host(), log.cpu_watts, Powercap::of_host),
            // Counters may have wrapped several times when the run ends.
            false if log.cpu_watts > 0.0 => CpuEnergy::Estimated { watts: log.cpu_watts },
            false => CpuEnergy::Absent("log.usage_seconds = 0: counters are not read".to_owned()),
        };
        let whose = SampledRank {
            rank,
            host: distributed.host(),
            accounts_for_process: distributed.is_first_of_process(),
            energy,
            gpu,
        };
        let path = env.folder.usage(rank);
        let sampler = Sampler::start(&path, Duration::from_secs_f64(log.usage_seconds), whose)?;
        let lines = read_metrics(&env.folder.metrics()).unwrap_or_default();
        let done = lines.iter().rev().find(|line| line.step() <= step);
        let seconds = done.and_then(|line| line.number("seconds")).unwrap_or_default();
        sampler.progress().set_counters(ProgressCounters { step, seconds, ..ProgressCounters::default() });
        self.sampler = Some(sampler);
        Ok(seconds)
    }

    /// Updates the sampler: progress, step times and traffic and, if it samples now, the bytes of training state.
    pub(super) fn update(&self, step: u64, meter: &Meter, traffic: &Traffic, state: &TrainState) {
        let Some(sampler) = &self.sampler else { return };
        let whole = meter.whole();
        sampler.progress().set_counters(ProgressCounters {
            step,
            seconds: meter.seconds_before() + whole.steps.as_secs_f64(),
            step_seconds: whole.steps.as_secs_f64(),
            data_seconds: whole.data.as_secs_f64(),
            communication_exposed_seconds: whole.communication.as_secs_f64(),
            communication_hidden_seconds: whole.busy.saturating_sub(whole.communication).as_secs_f64(),
            network_sent_bytes: traffic.bytes_sent,
            network_received_bytes: traffic.bytes_received,
        });
        sampler.progress().set_bytes(|| {
            let [parameters, gradients, optimizer] = state.bytes();
            let gathered = state.networks().map(Network::peak_gathered_bytes).sum();
            let activations = phalanx_tensor::take_peak_recorded_bytes() as u64;
            StateBytes { parameters, gradients, optimizer, gathered, activations }
        });
    }

    /// Returns utilisation, memory, power and energy of the GPU; see [`Gauge::metrics`].
    pub(super) fn gpu_values(&self) -> Vec<(&'static str, f64)> {
        self.gauge.as_deref().map(Gauge::metrics).unwrap_or_default()
    }

    /// The peak bytes of the GPU by kind.
    pub(super) fn gpu_peaks(&self) -> Vec<(String, u64)> {
        self.gauge.as_deref().map(Gauge::peaks).unwrap_or_default()
    }

    /// The resources used so far.
    pub(super) fn used(&self) -> ResourceUse {
        self.sampler.as_ref().map(Sampler::used).unwrap_or_default()
    }
}
