//! The summary of a run: its result, and the cost of each rank.

use std::time::Duration;

use phalanx_sharding::SyncStats;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Reporter, RunView};
use crate::engine::TrainError;
use crate::engine::distributed::Network;
use crate::engine::observer::named;
use crate::engine::train_loop::environment::Environment;
use crate::engine::train_loop::world::{Elastic, WorldChanges};
use crate::engine::training::AnyTraining;
use phalanx_run::FailureReport;
use phalanx_run::write_aside;
use phalanx_run::{
    DeadRank, EnergySummary, Machine, RankSummary, RunError, RunFolder, StagesSummary, Summary, SyncSummary,
    WeightsRecord, curves_svg, peak_memory, read_metrics, synchrony_svg,
};
use phalanx_usage::{ProcessUsage, RankEnergy, together};

/// The numbers of a [`RankSummary`] that ranks exchange.
const FIELDS: usize = 12;

/// The rest of a [`RankSummary`].
#[derive(Default, Serialize, Deserialize)]
struct RankUsage {
    synchrony: Option<SyncSummary>,
    stages: Option<StagesSummary>,
    process: ProcessUsage,
    energy: RankEnergy,
}

/// The cost of a run.
struct RunCost {
    ranks: Vec<RankSummary>,
    energy: EnergySummary,
}

impl Reporter {
    /// Builds the summary and draws the curves of a run that has ended. Returns `None` on ranks other than 0. All ranks call this
    /// together.
    pub(in crate::engine::train_loop) fn summary(
        &mut self,
        view: &RunView<'_, '_>,
        interrupted: bool,
        wall: Duration,
    ) -> Result<Option<Summary>, TrainError> {
        let RunCost { ranks, energy } = self.gather_cost(view)?;
        if view.distributed.rank() > 0 {
            return Ok(None);
        }
        let (env, state) = (view.env, &*view.state);
        let outline = state.training.outline();
        let headline = outline.headline.as_ref().map(|name| format!("test_{name}"));
        let peaks = self.resources.gpu_peaks();
        self.last.extend(peaks.into_iter().map(|(name, bytes)| (name, Value::from(bytes))));
        if let Some(events) = self.tensorboard.as_mut().filter(|_| !interrupted) {
            events.finished(state.step)?;
        }
        draw_curves(env.folder, &charted(&*state.training))?;
        if let Some(svg) = synchrony_svg(&title(env.folder), &ranks) {
            let path = env.folder.synchrony();
            write_aside(&path, svg.as_bytes()).map_err(RunError::io("write", &path))?;
        }
        Ok(Some(Summary {
            status: if interrupted { "interrupted" } else { "finished" }.to_owned(),
            step: state.step,
            epochs: state.step as f64 / env.plan.steps_per_epoch as f64,
            model: state.training.describe().to_owned(),
            weights: WeightsRecord::read(&env.folder.weights()).map(|record| record.summary()),
            parameters: state.num_parameters(),
            world_size: view.distributed.training_ranks(),
            servers: env.config.sync.servers,
            strategy: env.config.train.strategy.to_string(),
            samples_per_second: self.meter.whole().rate(),
            units: self.meter.whole().unit_rate(state.training.outline().weight_unit),
            arithmetic: self.meter.whole().arithmetic_rate(env.peak()),
            wall_seconds: wall.as_secs_f64(),
            metrics: leading(&self.last, headline.as_deref()),
            headline,
            best: view.selection.best().cloned(),
            stopped_early: !interrupted && view.selection.has_ended_early(state.step),
            energy: Some(energy),
            ranks,
            dead: with_causes(env, view.changes),
            left: view.changes.left.clone(),
            changes: view.changes.elastic.as_ref().map(|_| view.changes.log.all()).unwrap_or_default(),
            machine: Machine::detect(),
        }))
    }

    /// Gathers the cost of all ranks on all ranks.
    fn gather_cost(&self, view: &RunView<'_, '_>) -> Result<RunCost, TrainError> {
        let (distributed, state) = (view.distributed, &*view.state);
        let whole = self.meter.whole();
        // Each rank fills its row of a table of zeros; the sum of the tables is the table. Bytes stay exact in f64 up to 2^53.
        let mut table = vec![0.0; FIELDS * distributed.size()];
        table[FIELDS * distributed.rank()..][..FIELDS].copy_from_slice(&self.row(view));
        distributed.exchange().sum(&mut table)?;
        let used = self.resources.used();
        let synchrony = state.sync_stats().as_ref().map(synchrony);
        let own = RankUsage {
            synchrony,
            stages: view.schedule.stages(),
            process: used.process,
            energy: used.energy,
        };
        let own = serde_json::to_string(&own).map_err(|error| TrainError::Setup(error.to_string()))?;
        let all = distributed.exchange().gather_text(&own)?;
        let all: Vec<RankUsage> =
            all.iter().map(|text| serde_json::from_str(text).unwrap_or_default()).collect();
        let energy: Vec<RankEnergy> = all.iter().map(|usage| usage.energy.clone()).collect();
        let (energy, joules) = together(&energy, whole.samples as u64);
        let rows = table.chunks_exact(FIELDS).zip(all).zip(joules).enumerate();
        let ranks = rows.map(|(rank, ((row, usage), joules))| RankSummary {
            rank: distributed.roster().number_of(rank),
            joules,
            ..rank_summary(row, usage)
        });
        Ok(RunCost { ranks: ranks.collect(), energy })
    }

    /// This rank's row of the table of costs.
    fn row(&self, view: &RunView<'_, '_>) -> [f64; FIELDS] {
        let (whole, state) = (self.meter.whole(), &*view.state);
        let [parameters, gradients, optimizer] = state.bytes();
        let copies = view.changes.elastic.as_ref().map_or(0, Elastic::copy_bytes);
        let traffic = view.distributed.traffic(state.networks()) + view.schedule.traffic();
        [
            peak_memory().map_or(-1.0, |bytes| bytes as f64),
            parameters as f64,
            gradients as f64,
            (optimizer + copies) as f64,
            traffic.bytes_sent as f64,
            traffic.bytes_received as f64,
            whole.communication.as_secs_f64(),
            whole.busy.saturating_sub(whole.communication).as_secs_f64(),
            whole.data.as_secs_f64(),
            whole.steps.as_secs_f64(),
            self.meter.step_bytes(traffic.bytes_answered) as f64,
            state.networks().map(Network::peak_gathered_bytes).sum::<u64>() as f64,
        ]
    }
}

/// The summary of a rank from its row of the table of costs.
fn rank_summary(row: &[f64], usage: RankUsage) -> RankSummary {
    let RankUsage { synchrony, stages, process, .. } = usage;
    RankSummary {
        synchrony,
        stages,
        cpu_seconds: process.cpu_seconds,
        minor_faults: process.minor_faults,
        major_faults: process.major_faults,
        disk_read_bytes: process.disk_read_bytes,
        disk_written_bytes: process.disk_written_bytes,
        peak_memory_bytes: (row[0] >= 0.0).then_some(row[0] as u64),
        parameter_bytes: row[1] as u64,
        gradient_bytes: row[2] as u64,
        optimizer_bytes: row[3] as u64,
        bytes_sent: row[4] as u64,
        bytes_received: row[5] as u64,
        communication_exposed_seconds: row[6],
        communication_hidden_seconds: row[7],
        data_seconds: row[8],
        step_seconds: row[9],
        step_bytes_sent: row[10] as u64,
        gathered_bytes: row[11] as u64,
        ..RankSummary::default()
    }
}

/// The synchrony of this rank.
fn synchrony(stats: &SyncStats) -> SyncSummary {
    SyncSummary {
        staleness: stats.staleness.counts().to_vec(),
        leads: stats.leads.counts().to_vec(),
        waited_seconds: stats.waited.as_secs_f64(),
        clock_spread: stats.spread,
        meetings: stats.meetings,
        consensus_distance: stats.consensus_distance,
    }
}

/// The lost ranks, with the causes that a supervisor has recorded.
fn with_causes(env: &Environment<'_>, changes: &WorldChanges<'_>) -> Vec<DeadRank> {
    let cause = |rank| Some(FailureReport::read(&env.folder.logs(), rank)?.message);
    changes.dead.iter().map(|dead| DeadRank { cause: cause(dead.rank), ..dead.clone() }).collect()
}

/// The metrics of the chart of a run: the headline of training and of the test split, or else the losses.
fn charted(training: &dyn AnyTraining) -> Vec<String> {
    let (outline, phases) = (training.outline(), training.phases());
    let has_namesake =
        |name: &&String| phases.iter().any(|phase| phase.measures.iter().any(|measure| measure == *name));
    if let (Some(headline), [phase]) = (outline.headline.as_ref().filter(has_namesake), &phases[..]) {
        return vec![named(&phase.name, headline), format!("test_{headline}")];
    }
    let losses = phases.iter().map(|phase| named(&phase.name, "loss"));
    losses.chain(outline.loss().map(|name| format!("test_{name}"))).collect()
}

/// The metrics with the headline first.
fn leading(metrics: &Map<String, Value>, headline: Option<&str>) -> Map<String, Value> {
    let is_first = |name: &str| Some(name) == headline;
    let first = metrics.iter().filter(|(name, _)| is_first(name));
    let others = metrics.iter().filter(|(name, _)| !is_first(name));
    first.chain(others).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn title(folder: &RunFolder) -> String {
    folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Draws losses over the steps.
fn draw_curves(folder: &RunFolder, losses: &[String]) -> Result<(), TrainError> {
    let lines = read_metrics(&folder.metrics())?;
    let losses: Vec<&str> = losses.iter().map(String::as_str).collect();
    let svg = curves_svg(&title(folder), &lines, &losses);
    let path = folder.curves();
    write_aside(&path, svg.as_bytes()).map_err(RunError::io("write", &path))?;
    Ok(())
}
