//! The work of one rank: every algorithm and size in turn, some rounds of each.

use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use clap::ValueEnum;
use phalanx_collectives::{Algorithm, Communicator, CostModel, ReduceOp};
use serde_json::{Value as Json, json};

/// The operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Op {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    /// Each rank sends to the next and receives from the previous one
    SendRecv,
    /// Each rank averages with its two neighbours, as gossip on a ring does
    Gossip,
}

impl Op {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns the bus bandwidth divided by the algorithm bandwidth.
    pub(super) fn bus_factor(self, ranks: f64) -> f64 {
        match self {
            Self::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Self::ReduceScatter | Self::AllGather | Self::AllToAll | Self::Gather | Self::Scatter => {
                (ranks - 1.0) / ranks
            }
            Self::Broadcast | Self::Reduce | Self::SendRecv => 1.0,
            Self::Gossip => 2.0,
        }
    }
}

/// The buffers of one size.
enum Buffers {
    Plain { values: Vec<f32>, other: Vec<f32>, parts: Vec<Vec<f32>> },
    Shared(phalanx_collectives::SharedBuffer<f32>),
}

impl Buffers {
    fn new(comm: &Communicator, work: &Work, bytes: u64) -> Result<Self> {
        let len = usize::try_from(bytes / 4)?;
        if work.alloc {
            return Ok(Self::Shared(comm.alloc(len)?));
        }
        let parts = match work.op {
            Op::Scatter => vec![vec![0.0; len / comm.world_size()]; comm.world_size()],
            // The values before the step, for both neighbours.
            Op::Gossip => vec![vec![0.0; len]],
            _ => Vec::new(),
        };
        let paired = matches!(work.op, Op::SendRecv | Op::Gossip);
        let other = if paired { vec![0.0; len] } else { Vec::new() };
        Ok(Self::Plain { values: vec![0.0; len], other, parts })
    }

    /// Runs the operation once, on the bytes of the row.
    fn run(&mut self, comm: &Communicator, op: Op) -> Result<()> {
        let (rank, world) = (comm.rank(), comm.world_size());
        match (op, self) {
            (Op::AllReduce, Self::Plain { values, .. }) => comm.all_reduce(values, ReduceOp::Sum)?,
            (Op::AllReduce, Self::Shared(values)) => comm.all_reduce(values, ReduceOp::Sum)?,
            (Op::ReduceScatter, Self::Plain { values, .. }) => {
                comm.reduce_scatter_in_place(values, ReduceOp::Sum)?;
            }
            (Op::ReduceScatter, Self::Shared(values)) => {
                comm.reduce_scatter_in_place(values, ReduceOp::Sum)?;
            }
            (Op::AllGather, Self::Plain { values, .. }) => comm.all_gather_in_place(values)?,
            (Op::AllGather, Self::Shared(values)) => comm.all_gather_in_place(values)?,
            (Op::Broadcast, Self::Plain { values, .. }) => comm.broadcast(values, 0)?,
            (Op::Reduce, Self::Plain { values, .. }) => comm.reduce(values, ReduceOp::Sum, 0)?,
            (Op::AllToAll, Self::Plain { values, .. }) => drop(comm.all_to_all(values)?),
            (Op::Gather, Self::Plain { values, .. }) => {
                drop(comm.gatherv(&values[..values.len() / world], 0)?);
            }
            (Op::Scatter, Self::Plain { parts, .. }) => drop(comm.scatterv(parts, 0)?),
            (Op::SendRecv, Self::Plain { values, other, .. }) if world > 1 => {
                comm.send_recv(values, (rank + 1) % world, other, (rank + world - 1) % world)?;
            }
            (Op::Gossip, Self::Plain { values, other, parts }) if world > 1 => {
                let (next, before) = ((rank + 1) % world, (rank + world - 1) % world);
                let own = &mut parts[0];
                own.copy_from_slice(values);
                for (to, from) in [(next, before), (before, next)] {
                    comm.send_recv(own, to, other, from)?;
                    values.iter_mut().zip(&*other).for_each(|(value, other)| *value += other);
                }
                values.iter_mut().for_each(|value| *value /= 3.0);
            }
            (Op::SendRecv | Op::Gossip, Self::Plain { .. }) => {}
            (op, Self::Shared(_)) => {
                return Err(anyhow!("{} does not happen in place; leave --alloc out", op.name()));
            }
        }
        Ok(())
    }
}

/// The work of every rank.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) op: Op,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) sizes: Vec<u64>,
    pub(super) rounds: u64,
    pub(super) alloc: bool,
    pub(super) model: bool,
}

impl Work {
    pub(super) fn to_json(&self) -> Json {
        let algorithms: Vec<_> = self.algorithms.iter().map(|algorithm| algorithm.name()).collect();
        json!({
            "op": self.op.name(), "algorithms": algorithms, "sizes": self.sizes, "rounds": self.rounds,
            "alloc": self.alloc, "model": self.model,
        })
    }

    pub(super) fn from_json(work: &Json) -> Result<Self> {
        let list = |key: &str| work[key].as_array().into_iter().flatten();
        let algorithms = list("algorithms").filter_map(Json::as_str).map(str::parse);
        Ok(Self {
            op: Op::from_str(work["op"].as_str().unwrap_or_default(), false)
                .map_err(|error| anyhow!(error))?,
            algorithms: algorithms.collect::<Result<_, _>>()?,
            sizes: list("sizes").filter_map(Json::as_u64).collect(),
            rounds: work["rounds"].as_u64().context("`rounds`")?,
            alloc: work["alloc"] == true,
            model: work["model"] == true,
        })
    }
}

/// The times of one algorithm and size.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    /// The algorithm that was used, also with auto.
    pub(super) algorithm: String,
    /// Seconds of each round.
    pub(super) seconds: Vec<f64>,
    /// Bytes that rank 0 sends in each operation.
    pub(super) sent: f64,
}

/// The times, or `None` if the algorithm does not support the operation in this world.
pub(super) type Timed = Option<Cell>;

/// The measurements of rank 0.
#[derive(Debug, Default)]
pub(super) struct Measurements {
    /// The times by algorithm and size.
    pub(super) timed: Vec<Vec<Timed>>,
    pub(super) costs: Option<CostModel>,
}

impl Measurements {
    pub(super) fn to_json(&self) -> Json {
        let cell = |cell: &Timed| match cell {
            Some(Cell { algorithm, seconds, sent }) => json!([algorithm, seconds, sent]),
            None => Json::Null,
        };
        let timed: Vec<Vec<Json>> = self.timed.iter().map(|row| row.iter().map(cell).collect()).collect();
        json!({ "timed": timed, "costs": self.costs.map(costs_to_json) })
    }

    pub(super) fn from_json(seen: &Json) -> Result<Self> {
        let of_size = |cell: &Json| -> Timed {
            let seconds = cell[1].as_array()?.iter().filter_map(Json::as_f64).collect();
            Some(Cell { algorithm: cell[0].as_str()?.to_owned(), seconds, sent: cell[2].as_f64()? })
        };
        let rows = seen["timed"].as_array().context("`timed`")?;
        let timed =
            rows.iter().map(|row| row.as_array().into_iter().flatten().map(of_size).collect()).collect();
        Ok(Self { timed, costs: costs_from_json(&seen["costs"]) })
    }
}

pub(super) fn costs_to_json(costs: CostModel) -> Json {
    serde_json::to_value(costs).unwrap_or(Json::Null)
}

fn costs_from_json(costs: &Json) -> Option<CostModel> {
    serde_json::from_value(costs.clone()).ok()
}

/// Runs one rank's part. Only the seconds of rank 0 are reported.
pub(super) fn rank(comm: &Communicator, work: &Work) -> Result<Measurements> {
    let mut seen = Measurements::default();
    if work.model {
        seen.costs = Some(comm.costs()?);
    }
    for algorithm in &work.algorithms {
        let of_algorithm = if *algorithm == Algorithm::Auto { comm.clone() } else { comm.using(*algorithm) };
        let mut row = Vec::new();
        for &bytes in &work.sizes {
            row.push(time(&of_algorithm, work, bytes)?);
        }
        seen.timed.push(row);
    }
    Ok(seen)
}

fn time(comm: &Communicator, work: &Work, bytes: u64) -> Result<Timed> {
    let mut buffers = Buffers::new(comm, work, bytes)?;
    match buffers.run(comm, work.op) {
        // All ranks return this error before they send anything.
        Err(error) if work.algorithms.len() > 1 && is_lack(&error) => return Ok(None),
        other => other?,
    }
    let used = comm.recent().last().map_or_else(String::new, |last| last.algorithm.clone());
    let used = if work.alloc { format!("{used} in place") } else { used };
    for _ in 0..2 {
        buffers.run(comm, work.op)?;
    }
    let with_any_way = comm.using(Algorithm::Auto);
    // Rank 0 chooses the number of repetitions, so that a round lasts about 20 ms.
    let (start, before) = (Instant::now(), comm.stats().bytes_sent);
    buffers.run(comm, work.op)?;
    let sent = (comm.stats().bytes_sent - before) as f64;
    let mut repetitions = [(0.02 / start.elapsed().as_secs_f64().max(1e-7)).clamp(1.0, 20_000.0) as i64];
    with_any_way.broadcast(&mut repetitions, 0)?;
    let mut seconds = Vec::new();
    for _ in 0..work.rounds {
        with_any_way.barrier("round")?;
        let start = Instant::now();
        for _ in 0..repetitions[0] {
            buffers.run(comm, work.op)?;
        }
        seconds.push(start.elapsed().as_secs_f64() / repetitions[0] as f64);
    }
    Ok(Some(Cell { algorithm: used, seconds, sent }))
}

/// Returns true if an error means that the algorithm is not available.
fn is_lack(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<phalanx_collectives::CommError>(),
        Some(phalanx_collectives::CommError::Argument { .. })
    )
}
