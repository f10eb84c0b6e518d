//! Measurement of link costs, on the job that will use them.
//!
//! All ranks send at the same time, each to its neighbour, as in algorithms. So the results include the share of cores and links
//! that each rank gets while all are busy.

use std::time::Instant;

use super::backend::Backend;
use crate::algorithms::cost::{CostModel, LinkCost, LinkCosts};
use crate::algorithms::{Group, Messages, gathered, hierarchical};
use crate::dtype::{DType, ReduceOp};
use crate::error::Result;
use crate::operation::{Kind, Scope, Tag};
use crate::partition::PIECE;
use crate::reduce::Reduction;
use crate::simulated::SimulatedLink;

/// Steps that are measured together, and repetitions; the median counts.
const STEPS: usize = 30;
const ROUNDS: usize = 7;
/// Messages of a whole piece that are measured together.
const PIECES: usize = 4;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl CostModel {
    /// Returns the costs of a world over a simulated link. The cost of reducing is measured on this machine now.
    pub fn over(link: &SimulatedLink) -> Self {
        Self::over_hosts(link, link)
    }

    /// Returns the costs of a world with one simulated link inside hosts and another between them.
    pub fn over_hosts(inside: &SimulatedLink, between: &SimulatedLink) -> Self {
        let (local, remote) = (Some(LinkCosts::over(inside)), Some(LinkCosts::over(between)));
        Self { direct: None, local, remote, gamma: reducing() }
    }
}

impl Backend {
    /// Returns the costs of this world's links, measured at the first call. Every rank calls this at the same place.
    pub(crate) fn measured(&mut self) -> Result<CostModel> {
        if let Some(costs) = self.costs {
            return Ok(costs);
        }
        let before = (self.sequence, self.tag);
        self.enter(Scope::World, Tag::new(Kind::Measure, DType::F32, 0))?;
        let result = self.measure();
        self.shared.recorder.end(self.id, result.is_ok());
        (self.sequence, self.tag) = before;
        let costs = result?;
        tracing::debug!(?costs, "measured the links");
        self.costs = Some(costs);
        Ok(costs)
    }

    fn measure(&mut self) -> Result<CostModel> {
        let hosts = self.hosts.clone();
        let (local, remote) = links(self, &hosts, self.rank)?;
        let direct = if self.is_direct() { Some(self.meetings()?) } else { None };
        let own = found(local, remote, direct);
        let all = self.all_ranks();
        let all = gathered::all_gather(self, &all, bytemuck::cast_slice(&own))?;
        Ok(agreed(&all))
    }

    /// Returns the cost of a synchronisation in shared memory, and of a byte through it.
    fn meetings(&mut self) -> Result<LinkCost> {
        let reduction = Reduction::new(ReduceOp::Sum, self.world_size);
        let mut values = vec![0.0_f32; PIECE];
        let mut time = |backend: &mut Self, len: usize, count: usize| -> Result<f64> {
            let mut times = Vec::with_capacity(ROUNDS);
            for round in 0..=ROUNDS {
                let start = Instant::now();
                for _ in 0..count {
                    backend.direct_all_reduce(&mut values[..len], reduction)?;
                }
                if round > 0 {
                    times.push(start.elapsed().as_secs_f64() / count as f64);
                }
            }
            Ok(median(times))
        };
        let alpha = time(self, 1, STEPS)?;
        let whole = time(self, PIECE, PIECES)?;
        let n = self.world_size as f64;
        let moved = 2.0 * (n - 1.0) / n * (4 * PIECE) as f64;
        Ok(LinkCost { alpha, beta: ((whole - alpha) / moved).max(0.0) })
    }
}

/// Returns the costs of links inside this rank's host and between hosts, if there are any.
pub(crate) fn links(
    messages: &mut impl Messages,
    hosts: &[usize],
    rank: usize,
) -> Result<(Option<LinkCosts>, Option<LinkCosts>)> {
    let hosts = hierarchical::by_host(hosts);
    let inside = hosts.iter().find(|ranks| ranks.contains(&rank)).cloned().unwrap_or_default();
    let leaders = hosts.iter().map(|ranks| ranks[0]).collect();
    let mut among = |ranks| {
        let group = Group::of(ranks, rank).filter(|group| group.len() > 1);
        group.map(|group| shift(messages, &group)).transpose()
    };
    let local = among(inside)?;
    Ok((local, among(leaders)?))
}

/// Returns the cost of a step in which all ranks send to their neighbours, and of one in which a single rank sends.
fn shift(messages: &mut impl Messages, group: &Group) -> Result<LinkCosts> {
    let mut piece = vec![0_u8; PIECE];
    let busy = cost(|len, count| {
        for _ in 0..count {
            messages.send(group.next(), &piece[..len])?;
            messages.receive(group.previous(), &mut piece[..len])?;
        }
        Ok(count)
    })?;
    // A message travels around the ring, so one rank sends at a time; with two ranks it goes there and back.
    let alone = cost(|len, count| {
        for _ in 0..count.div_ceil(group.len()) {
            if group.own() > 0 {
                messages.receive(group.previous(), &mut piece[..len])?;
            }
            messages.send(group.next(), &piece[..len])?;
            if group.own() == 0 {
                messages.receive(group.previous(), &mut piece[..len])?;
            }
        }
        Ok(count.div_ceil(group.len()) * group.len())
    })?;
    Ok(LinkCosts { busy, alone })
}

/// Returns the cost of messages. `run` takes a number of steps and a size, and returns the number of messages.
fn cost(mut run: impl FnMut(usize, usize) -> Result<usize>) -> Result<LinkCost> {
    let mut time = |len: usize, count: usize| -> Result<f64> {
        let mut times = Vec::with_capacity(ROUNDS);
        for round in 0..=ROUNDS {
            let start = Instant::now();
            let steps = run(len, count)?;
            // The first round warms up.
            if round > 0 {
                times.push(start.elapsed().as_secs_f64() / steps as f64);
            }
        }
        Ok(median(times))
    };
    let alpha = time(0, STEPS)?;
    let whole = time(PIECE, PIECES)?;
    Ok(LinkCost { alpha, beta: ((whole - alpha) / PIECE as f64).max(0.0) })
}

/// Returns the results of this rank as numbers for the others.
pub(crate) fn found(
    local: Option<LinkCosts>,
    remote: Option<LinkCosts>,
    direct: Option<LinkCost>,
) -> Vec<f64> {
    let busy = |link: Option<LinkCosts>| link.map(|link| link.busy);
    let alone = |link: Option<LinkCosts>| link.map(|link| link.alone);
    let gamma = Some(LinkCost { alpha: reducing(), beta: 0.0 });
    let own = [busy(local), alone(local), busy(remote), alone(remote), direct, gamma];
    own.iter().flat_map(|cost| cost.map_or([f64::NAN; 2], |cost| [cost.alpha, cost.beta])).collect()
}

/// Returns the medians of the results of all ranks that could measure, which are equal on all ranks.
pub(crate) fn agreed(all: &[Vec<u8>]) -> CostModel {
    let middle = |index: usize| {
        let of_rank = |bytes: &Vec<u8>| {
            let bytes = bytes.get(8 * index..8 * index + 8)?;
            Some(f64::from_ne_bytes(bytes.try_into().ok()?)).filter(|value| !value.is_nan())
        };
        let values: Vec<f64> = all.iter().filter_map(of_rank).collect();
        if values.is_empty() { None } else { Some(median(values)) }
    };
    let cost = |index: usize| Some(LinkCost { alpha: middle(index)?, beta: middle(index + 1)? });
    let link = |index: usize| Some(LinkCosts { busy: cost(index)?, alone: cost(index + 2)? });
    let gamma = middle(10).unwrap_or(0.0);
    CostModel { local: link(0), remote: link(4), direct: cost(8), gamma }
}

/// Measures the seconds of reducing a byte of f32.
fn reducing() -> f64 {
    let (mut acc, other) = (vec![0.0_f32; PIECE / 4], vec![1.0_f32; PIECE / 4]);
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        crate::reduce::reduce_into(ReduceOp::Sum, &mut acc, std::hint::black_box(&other));
        std::hint::black_box(&mut acc);
        start.elapsed().as_secs_f64() / PIECE as f64
    });
    median(times.collect())
}
