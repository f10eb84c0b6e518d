//! Measuring what links cost, on the job that will use them.
//!
//! All ranks send at the same time, each to its neighbour, as algorithms make them; so the figures hold the share that each
//! gets of cores and links while all are busy.

use std::time::Instant;

use super::native::Native;
use super::tag::{Kind, Scope, Tag};
use crate::algorithms::cost::{CostModel, LinkCost, LinkCosts};
use crate::algorithms::{Group, PIECE, gathered, hierarchical};
use crate::dtype::{DType, ReduceOp};
use crate::error::Result;
use crate::reduce::Reduction;

/// Steps that are measured together, and how often; the median counts.
const STEPS: usize = 30;
const ROUNDS: usize = 7;
/// Messages of a whole piece that are measured together.
const PIECES: usize = 4;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl Native {
    /// The costs of this world's links, measured when they are first asked for. Every rank comes here at the same place.
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
        let hosts = hierarchical::by_host(&self.hosts);
        let inside = hosts.iter().find(|ranks| ranks.contains(&self.rank)).cloned().unwrap_or_default();
        let inside = Group::of(inside, self.rank);
        let local = match inside.filter(|group| group.len() > 1) {
            Some(group) => Some(self.shift(&group)?),
            None => None,
        };
        let leaders = Group::of(hosts.iter().map(|ranks| ranks[0]).collect(), self.rank);
        let remote = match leaders.filter(|group| group.len() > 1) {
            Some(group) => Some(self.shift(&group)?),
            None => None,
        };
        let direct = if self.is_direct() { Some(self.meetings()?) } else { None };
        let busy = |link: Option<LinkCosts>| link.map(|link| link.busy);
        let alone = |link: Option<LinkCosts>| link.map(|link| link.alone);
        let gamma = Some(LinkCost { alpha: reducing(), beta: 0.0 });
        let own = [busy(local), alone(local), busy(remote), alone(remote), direct, gamma];
        // Every rank takes the median of those that could measure, so that all hold the same.
        let own: Vec<f64> =
            own.iter().flat_map(|cost| cost.map_or([f64::NAN; 2], |cost| [cost.alpha, cost.beta])).collect();
        let all = self.everybody();
        let all = gathered::all_gather(self, &all, bytemuck::cast_slice(&own))?;
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
        Ok(CostModel { local: link(0), remote: link(4), direct: cost(8), gamma })
    }

    /// The cost of a step in which everybody sends to its neighbour, and of one in which only one rank does.
    fn shift(&mut self, group: &Group) -> Result<LinkCosts> {
        let mut piece = vec![0_u8; PIECE];
        let busy = self.cost(|native, len, count| {
            for _ in 0..count {
                native.send(group.next(), &piece[..len])?;
                native.receive(group.previous(), &mut piece[..len])?;
            }
            Ok(count)
        })?;
        // A message goes around, so that one rank sends at a time; with two ranks that is there and back.
        let alone = self.cost(|native, len, count| {
            for _ in 0..count.div_ceil(group.len()) {
                if group.own() > 0 {
                    native.receive(group.previous(), &mut piece[..len])?;
                }
                native.send(group.next(), &piece[..len])?;
                if group.own() == 0 {
                    native.receive(group.previous(), &mut piece[..len])?;
                }
            }
            Ok(count.div_ceil(group.len()) * group.len())
        })?;
        Ok(LinkCosts { busy, alone })
    }

    /// What messages cost in some steps, of which `run` does so many with messages of so many bytes, and says how many it
    /// was.
    fn cost(&mut self, mut run: impl FnMut(&mut Self, usize, usize) -> Result<usize>) -> Result<LinkCost> {
        let mut time = |native: &mut Self, len: usize, count: usize| -> Result<f64> {
            let mut times = Vec::with_capacity(ROUNDS);
            for round in 0..=ROUNDS {
                let start = Instant::now();
                let steps = run(native, len, count)?;
                // The first round warms up.
                if round > 0 {
                    times.push(start.elapsed().as_secs_f64() / steps as f64);
                }
            }
            Ok(median(times))
        };
        let alpha = time(self, 0, STEPS)?;
        let whole = time(self, PIECE, PIECES)?;
        Ok(LinkCost { alpha, beta: ((whole - alpha) / PIECE as f64).max(0.0) })
    }

    /// The cost of meeting in shared memory, and of a byte through it.
    fn meetings(&mut self) -> Result<LinkCost> {
        let reduction = Reduction::new(ReduceOp::Sum, self.world_size);
        let mut values = vec![0.0_f32; PIECE];
        let mut time = |native: &mut Self, len: usize, count: usize| -> Result<f64> {
            let mut times = Vec::with_capacity(ROUNDS);
            for round in 0..=ROUNDS {
                let start = Instant::now();
                for _ in 0..count {
                    native.direct_all_reduce(&mut values[..len], reduction)?;
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

/// Seconds for reducing a byte of f32.
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
