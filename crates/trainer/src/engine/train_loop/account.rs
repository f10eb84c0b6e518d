//! What a run has cost, rank by rank.

use std::time::Duration;

use phalanx_sharding::SyncStats;
use serde::{Deserialize, Serialize};

use super::Run;
use super::elastic::Elastic;
use crate::engine::distributed::Network;
use crate::engine::error::TrainError;
use crate::usage::{ProcessUsage, RankEnergy, Sampler, together};
use phalanx_run::FailureReport;
use phalanx_run::{DeadRank, EnergySummary, Machine, RankSummary, Summary, SyncSummary, peak_memory};

/// Numbers of a [`RankSummary`] that travel between ranks.
const FIELDS: usize = 12;

/// What a rank tells besides.
#[derive(Default, Serialize, Deserialize)]
struct Told {
    synchrony: Option<SyncSummary>,
    process: ProcessUsage,
    energy: RankEnergy,
}

/// What every rank has to account for, and the energy of all, known to all.
pub(super) fn gather(run: &Run<'_>) -> Result<(Vec<RankSummary>, EnergySummary), TrainError> {
    let (rank, size) = (run.distributed.rank(), run.distributed.size());
    let whole = run.meter.whole();
    let [parameters, gradients, optimizer] = run.state.bytes();
    let traffic = run.distributed.traffic(run.state.networks());
    // Every rank fills its own row of a table of zeros; the sum of the tables is the table. Bytes stay exact in
    // f64 up to 2^53.
    let mut table = vec![0.0; FIELDS * size];
    table[FIELDS * rank..][..FIELDS].copy_from_slice(&[
        peak_memory().map_or(-1.0, |bytes| bytes as f64),
        parameters as f64,
        gradients as f64,
        (optimizer + run.bytes_of_copies()) as f64,
        traffic.bytes_sent as f64,
        traffic.bytes_received as f64,
        whole.communication.as_secs_f64(),
        whole.busy.saturating_sub(whole.communication).as_secs_f64(),
        whole.data.as_secs_f64(),
        whole.steps.as_secs_f64(),
        whole.sent as f64,
        run.state.networks().map(Network::peak_gathered_bytes).sum::<u64>() as f64,
    ]);
    run.distributed.sum(&mut table)?;
    let used = run.usage.as_ref().map(Sampler::used).unwrap_or_default();
    let synchrony = run.state.sync_stats().as_ref().map(of_stats);
    let own = Told { synchrony, process: used.process, energy: used.energy };
    let own = serde_json::to_string(&own).map_err(|error| TrainError::Setup(error.to_string()))?;
    let told = run.distributed.gather_text(&own)?;
    let told: Vec<Told> = told.iter().map(|told| serde_json::from_str(told).unwrap_or_default()).collect();
    let energy: Vec<RankEnergy> = told.iter().map(|told| told.energy.clone()).collect();
    let (energy, joules) = together(&energy, whole.images as u64);
    let rows = table.chunks_exact(FIELDS).zip(told).enumerate();
    let ranks = rows
        .map(|(rank, (row, Told { synchrony, process, .. }))| RankSummary {
            synchrony,
            cpu_seconds: process.cpu_seconds,
            minor_faults: process.minor_faults,
            major_faults: process.major_faults,
            disk_read_bytes: process.disk_read_bytes,
            disk_written_bytes: process.disk_written_bytes,
            joules: joules[rank],
            rank: run.distributed.first_number(rank),
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
        })
        .collect();
    Ok((ranks, energy))
}

/// How this rank kept step with the others.
fn of_stats(stats: &SyncStats) -> SyncSummary {
    SyncSummary {
        staleness: stats.staleness.counts().to_vec(),
        leads: stats.leads.counts().to_vec(),
        waited_seconds: stats.waited.as_secs_f64(),
        clock_spread: stats.spread,
        meetings: stats.meetings,
        consensus_distance: stats.consensus_distance,
    }
}

/// Who has died, with what a supervisor has written down of it.
fn dead(run: &Run<'_>) -> Vec<DeadRank> {
    let told = |rank| Some(FailureReport::read(&run.folder.logs(), rank)?.message);
    run.dead.iter().map(|dead| DeadRank { cause: told(dead.rank), ..dead.clone() }).collect()
}

/// The summary of a run that has ended.
pub(super) fn summary(
    run: &Run<'_>,
    ranks: Vec<RankSummary>,
    energy: EnergySummary,
    (interrupted, wall): (bool, Duration),
) -> Summary {
    let step = run.state.step;
    Summary {
        status: if interrupted { "interrupted" } else { "finished" }.to_owned(),
        step,
        epochs: step as f64 / run.plan.steps_per_epoch as f64,
        model: run.state.training.describe().to_owned(),
        parameters: run.state.num_parameters(),
        world_size: run.distributed.data_size(),
        servers: run.config.sync.servers,
        strategy: run.config.train.strategy.to_string(),
        images_per_second: run.meter.whole().rate(),
        wall_seconds: wall.as_secs_f64(),
        metrics: run.last.clone(),
        energy: Some(energy),
        ranks,
        dead: dead(run),
        changes: run.elastic.as_ref().map(Elastic::changes).unwrap_or_default(),
        machine: Machine::detect(),
    }
}
