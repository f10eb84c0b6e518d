//! The outer optimizer: what a meeting makes of the ways that parameters have gone.

use half::bf16;
use phalanx_collectives::{FlatBuffer, Handle, ReduceOp, SliceMut};

use crate::parallel::{Saved, whole};
use crate::replica::Replica;
use crate::synchrony::SyncOptions;
use crate::{Result, ShardingError};

/// Parameters as of the last meeting, the outer momentum, and meetings under way.
#[derive(Debug, Default)]
pub(super) struct Outer {
    /// By bucket; empty for frozen ones.
    global: Vec<Vec<f32>>,
    momentum: Vec<Vec<f32>>,
    coming: Vec<Coming>,
}

/// A meeting of a fragment that is under way.
#[derive(Debug)]
struct Coming {
    fragment: usize,
    /// The step after which it began.
    since: u64,
    sums: Vec<Sum>,
}

/// The sum of a bucket's outer gradients on its way.
#[derive(Debug)]
struct Sum {
    bucket: usize,
    /// This rank's part of it.
    own: Vec<f32>,
    handle: Handle<Box<dyn FlatBuffer>>,
}

/// The trainable buckets of a fragment.
fn buckets(replica: &Replica, fragment: usize, fragments: usize) -> Vec<usize> {
    let all: Vec<usize> = replica.trainable().map(|(at, _)| at).collect();
    // Cut by elements, so that fragments take about as long.
    let total: usize = all.iter().map(|at| replica.params[*at].len()).sum();
    let mut before = 0;
    let mut of = Vec::new();
    for at in all {
        let middle = before + replica.params[at].len() / 2;
        if (middle * fragments / total.max(1)).min(fragments - 1) == fragment {
            of.push(at);
        }
        before += replica.params[at].len();
    }
    of
}

impl Outer {
    /// All begin with the parameters that there are.
    pub(super) fn beginning(replica: &Replica) -> Result<Self> {
        let mut outer = Self::default();
        for (at, param) in replica.params.iter().enumerate() {
            let global = if param.trainable() { replica.values(at)? } else { Vec::new() };
            outer.momentum.push(vec![0.0; global.len()]);
            outer.global.push(global);
        }
        Ok(outer)
    }

    pub(super) fn bytes(&self) -> u64 {
        let kept = self.global.iter().chain(&self.momentum).map(Vec::len).sum::<usize>();
        let coming = self.coming.iter().flat_map(|coming| &coming.sums).map(|sum| 2 * sum.own.len());
        4 * (kept + coming.sum::<usize>()) as u64
    }

    /// What is due after step `steps`, counted from 1: merges meetings that have gone on for long enough, and begins those of
    /// the fragments whose turn it is. How many have ended.
    pub(super) fn after(&mut self, steps: u64, replica: &Replica, options: &SyncOptions) -> Result<u64> {
        let mut ended = 0;
        while self.coming.first().is_some_and(|coming| coming.since + options.overlap <= steps) {
            let coming = self.coming.remove(0);
            self.merge(coming, replica, options)?;
            ended += 1;
        }
        for fragment in 0..options.fragments {
            let offset = (fragment as u64 + 1) * options.every / options.fragments as u64;
            if steps % options.every != offset % options.every {
                continue;
            }
            let coming = self.begin(fragment, steps, replica, options)?;
            if options.overlap > 0 {
                self.coming.push(coming);
            } else {
                self.merge(coming, replica, options)?;
                ended += 1;
            }
        }
        Ok(ended)
    }

    /// Sends the way that this rank's parameters of a fragment have gone.
    fn begin(&self, fragment: usize, since: u64, replica: &Replica, options: &SyncOptions) -> Result<Coming> {
        let mut sums = Vec::new();
        for at in buckets(replica, fragment, options.fragments) {
            let global = &self.global[at];
            let own: Vec<f32> = replica.with_values(at, |local| {
                global.iter().zip(local).map(|(global, local)| global - *local).collect()
            })?;
            sums.push(Sum { bucket: at, own: own.clone(), handle: send(own, replica, options) });
        }
        Ok(Coming { fragment, since, sums })
    }

    /// Takes the outer step of a fragment with the mean that has come.
    fn merge(&mut self, coming: Coming, replica: &Replica, options: &SyncOptions) -> Result<()> {
        let ranks = replica.ranks() as f32;
        let (rate, decay) = (options.outer_lr as f32, options.outer_momentum as f32);
        let own = if options.overlap > 0 { options.mixing as f32 } else { 0.0 };
        for Sum { bucket: at, handle, .. } in coming.sums {
            let sum = singles(handle.wait()?)?;
            let (global, momentum) = (&mut self.global[at], &mut self.momentum[at]);
            for ((global, momentum), sum) in global.iter_mut().zip(momentum).zip(sum) {
                let d = sum / ranks;
                *momentum = decay * *momentum + d;
                *global -= rate * (d + decay * *momentum);
            }
            replica.with_values(at, |local| {
                for (local, global) in local.iter_mut().zip(global) {
                    *local = if own > 0.0 { own * *local + (1.0 - own) * *global } else { *global };
                }
            })?;
        }
        Ok(())
    }

    /// Adds all of this to what a checkpoint keeps.
    pub(super) fn write(&self, saved: &mut Vec<(String, Vec<f32>)>) {
        for (at, (global, momentum)) in self.global.iter().zip(&self.momentum).enumerate() {
            if !global.is_empty() {
                saved.push((format!("global.{at}"), global.clone()));
                saved.push((format!("momentum.{at}"), momentum.clone()));
            }
        }
        let begun: Vec<u64> =
            self.coming.iter().flat_map(|coming| [coming.fragment as u64, coming.since]).collect();
        saved.push(("meetings".to_owned(), whole(&begun)));
        for (number, coming) in self.coming.iter().enumerate() {
            let own =
                coming.sums.iter().map(|sum| (format!("coming.{number}.{}", sum.bucket), sum.own.clone()));
            saved.extend(own);
        }
    }

    /// Reads what [`Outer::write`] has written, and sends again what was under way.
    pub(super) fn read(saved: &mut Saved, replica: &Replica, options: &SyncOptions) -> Result<Self> {
        let mut outer = Self::default();
        for (at, param) in replica.params.iter().enumerate() {
            let mut read = |kind: &str| match param.trainable() {
                true => saved.take(&format!("{kind}.{at}"), param.len()),
                false => Ok(Vec::new()),
            };
            outer.global.push(read("global")?);
            outer.momentum.push(read("momentum")?);
        }
        for (number, begun) in saved.whole("meetings")?.chunks_exact(2).enumerate() {
            let (fragment, since) = (begun[0] as usize, begun[1]);
            let mut sums = Vec::new();
            for at in buckets(replica, fragment.min(options.fragments - 1), options.fragments) {
                let own = saved.take(&format!("coming.{number}.{at}"), replica.params[at].len())?;
                sums.push(Sum { bucket: at, own: own.clone(), handle: send(own, replica, options) });
            }
            outer.coming.push(Coming { fragment, since, sums });
        }
        Ok(outer)
    }
}

/// Starts the sum of an outer gradient over the ranks.
fn send(own: Vec<f32>, replica: &Replica, options: &SyncOptions) -> Handle<Box<dyn FlatBuffer>> {
    let message: Box<dyn FlatBuffer> = match options.outer_bf16 {
        true => Box::new(own.into_iter().map(bf16::from_f32).collect::<Vec<_>>()),
        false => Box::new(own),
    };
    replica.by.all_reduce_async(message, ReduceOp::Sum)
}

/// The numbers of a sum that has come.
fn singles(mut sum: Box<dyn FlatBuffer>) -> Result<Vec<f32>> {
    let mut numbers = None;
    let opened = sum.with_slice_mut(&mut |slice| {
        numbers = match slice {
            SliceMut::F32(values) => Some(values.to_vec()),
            SliceMut::BF16(values) => Some(values.iter().map(|value| value.to_f32()).collect()),
            _ => None,
        };
    });
    opened.map_err(|error| ShardingError::state("diloco", error.to_string()))?;
    numbers.ok_or_else(|| ShardingError::state("diloco", "an outer gradient came as neither f32 nor bf16"))
}
