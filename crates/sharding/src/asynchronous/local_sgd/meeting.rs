//! The outer optimizer, which applies the averaged parameter changes of all ranks.

use candle_core::DType;
use half::bf16;
use phalanx_collectives::{Handle, ReduceOp};
use phalanx_tensor::FlatStorage;

use crate::asynchronous::replica::Replica;
use crate::parallel::{SavedState, whole};
use crate::reduction_math::{OuterStep, blend, difference, numbers, write};
use crate::synchrony::SyncOptions;
use crate::{Result, ShardingError};
use phalanx_codecs::buffer::{InPlace, with_singles};

/// The parameters of the last synchronisation, the outer momentum, and pending synchronisations. All are in the memory
/// of the model's parameters.
#[derive(Debug, Default)]
pub(super) struct Outer {
    /// The state of each bucket; `None` for frozen ones.
    kept: Vec<Option<OuterState>>,
    coming: Vec<PendingSync>,
}

/// The outer optimizer's state of a bucket.
#[derive(Debug)]
struct OuterState {
    global: FlatStorage,
    momentum: FlatStorage,
}

/// A pending synchronisation of a fragment.
#[derive(Debug)]
struct PendingSync {
    fragment: usize,
    /// The step after which it began.
    since: u64,
    sums: Vec<Sum>,
}

/// The pending sum of a bucket's outer gradients.
#[derive(Debug)]
struct Sum {
    bucket: usize,
    /// This rank's outer gradient.
    own: FlatStorage,
    message: Message,
}

/// The values that are summed.
#[derive(Debug)]
enum Message {
    /// In place, as f32, or as bf16 on a device.
    InPlace(Handle<InPlace>),
    /// On the host, rounded to bf16.
    Rounded(Handle<Vec<bf16>>),
}

/// Returns the trainable buckets of a fragment, except for frozen ones.
fn buckets(replica: &Replica, fragment: usize, fragments: usize) -> Vec<usize> {
    let all: Vec<usize> = replica.trainable().map(|(at, _)| at).collect();
    // Fragments have about the same number of elements.
    let total: usize = all.iter().map(|at| replica.params[*at].len()).sum();
    let mut before = 0;
    let mut of = Vec::new();
    for at in all {
        let middle = before + replica.params[at].len() / 2;
        let is_inside = (middle * fragments / total.max(1)).min(fragments - 1) == fragment;
        if is_inside && !replica.params[at].is_frozen() {
            of.push(at);
        }
        before += replica.params[at].len();
    }
    of
}

impl Outer {
    /// Begins with the current parameters.
    pub(super) fn beginning(replica: &Replica) -> Result<Self> {
        let mut outer = Self::default();
        for (at, param) in replica.params.iter().enumerate() {
            outer.kept.push(match param.trainable() {
                true => {
                    let global = replica.here(at)?.copy()?;
                    let momentum = FlatStorage::zeros(param.len(), param.dtype(), param.device())?;
                    Some(OuterState { global, momentum })
                }
                false => None,
            });
        }
        Ok(outer)
    }

    pub(super) fn bytes(&self) -> u64 {
        let kept: usize =
            self.kept.iter().flatten().map(|kept| kept.global.bytes() + kept.momentum.bytes()).sum();
        let coming = self.coming.iter().flat_map(|coming| &coming.sums).map(|sum| 2 * sum.own.bytes());
        (kept + coming.sum::<usize>()) as u64
    }

    /// Returns the state of a trainable bucket.
    fn of(&self, at: usize) -> Result<&OuterState> {
        let missing = || ShardingError::state("diloco", format!("bucket {at} has no values of a meeting"));
        self.kept.get(at).and_then(Option::as_ref).ok_or_else(missing)
    }

    /// Completes the synchronisations that end after step `steps`, counted from 1, and starts the due ones. Returns the
    /// number of completed synchronisations.
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

    /// Starts to sum the outer gradients of a fragment: this rank's parameter changes since the last synchronisation.
    fn begin(
        &self,
        fragment: usize,
        since: u64,
        replica: &Replica,
        options: &SyncOptions,
    ) -> Result<PendingSync> {
        let mut sums = Vec::new();
        for at in buckets(replica, fragment, options.fragments) {
            let own = difference(&self.of(at)?.global, &replica.here(at)?)?;
            let message = send(&own, at, replica, options)?;
            sums.push(Sum { bucket: at, own, message });
        }
        Ok(PendingSync { fragment, since, sums })
    }

    /// Takes the outer step of a fragment with the received mean.
    fn merge(&self, coming: PendingSync, replica: &Replica, options: &SyncOptions) -> Result<()> {
        let step = OuterStep { rate: options.outer_lr, momentum: options.outer_momentum };
        let own = if options.overlap > 0 { options.mixing } else { 0.0 };
        for Sum { bucket: at, own: sent, message } in coming.sums {
            let sum = sum_of(message, sent)?;
            let OuterState { global, momentum } = self.of(at)?;
            step.take(global, momentum, (&sum, replica.ranks()))?;
            blend(&replica.here(at)?, own, global)?;
        }
        Ok(())
    }

    /// Adds this state to a checkpoint.
    pub(super) fn write(&self, saved: &mut Vec<(String, Vec<f32>)>) -> Result<()> {
        for (at, kept) in self.kept.iter().enumerate() {
            if let Some(OuterState { global, momentum }) = kept {
                saved.push((format!("global.{at}"), numbers(global)?));
                saved.push((format!("momentum.{at}"), numbers(momentum)?));
            }
        }
        let begun: Vec<u64> =
            self.coming.iter().flat_map(|coming| [coming.fragment as u64, coming.since]).collect();
        saved.push(("meetings".to_owned(), whole(&begun)));
        for (number, coming) in self.coming.iter().enumerate() {
            for Sum { bucket, own, .. } in &coming.sums {
                saved.push((format!("coming.{number}.{bucket}"), numbers(own)?));
            }
        }
        Ok(())
    }

    /// Reads the state that [`Outer::write`] wrote, and restarts pending sums.
    pub(super) fn read(saved: &mut SavedState, replica: &Replica, options: &SyncOptions) -> Result<Self> {
        let outer = Self::beginning(replica)?;
        for (at, kept) in outer.kept.iter().enumerate() {
            if let Some(OuterState { global, momentum }) = kept {
                write(global, &saved.take(&format!("global.{at}"), global.len())?)?;
                write(momentum, &saved.take(&format!("momentum.{at}"), momentum.len())?)?;
            }
        }
        let mut coming = Vec::new();
        for (number, begun) in saved.whole("meetings")?.chunks_exact(2).enumerate() {
            let (fragment, since) = (begun[0] as usize, begun[1]);
            let mut sums = Vec::new();
            for at in buckets(replica, fragment.min(options.fragments - 1), options.fragments) {
                let own = outer.of(at)?.global.copy()?;
                write(&own, &saved.take(&format!("coming.{number}.{at}"), own.len())?)?;
                let message = send(&own, at, replica, options)?;
                sums.push(Sum { bucket: at, own, message });
            }
            coming.push(PendingSync { fragment, since, sums });
        }
        Ok(Self { coming, ..outer })
    }
}

/// Starts the sum of a bucket's outer gradient over the ranks.
fn send(own: &FlatStorage, at: usize, replica: &Replica, options: &SyncOptions) -> Result<Message> {
    let place = replica.params[at].device();
    let sum = ReduceOp::Sum;
    Ok(match (options.outer_bf16, place.is_host()) {
        (true, true) => {
            let rounded =
                with_singles(own, |own| own.iter().copied().map(bf16::from_f32).collect::<Vec<_>>())?;
            Message::Rounded(replica.by.all_reduce_async(rounded, sum))
        }
        (true, false) => {
            let rounded = FlatStorage::unwritten(own.len(), DType::BF16, place)?;
            rounded.copy_from(own)?;
            Message::InPlace(replica.by.all_reduce_async(InPlace::new(rounded)?, sum))
        }
        (false, _) => Message::InPlace(replica.by.all_reduce_async(InPlace::new(own.copy()?)?, sum)),
    })
}

/// Returns a received sum in f32. It may overwrite `sent`, this rank's outer gradient.
fn sum_of(message: Message, sent: FlatStorage) -> Result<FlatStorage> {
    Ok(match message {
        Message::InPlace(handle) => {
            let came = handle.wait()?.flat().clone();
            if came.dtype() == DType::F32 {
                return Ok(came);
            }
            sent.copy_from(&came)?;
            sent
        }
        Message::Rounded(handle) => {
            let came = handle.wait()?;
            with_singles(&sent, |sent| {
                sent.iter_mut().zip(came).for_each(|(sent, came)| *sent = came.to_f32());
            })?;
            sent
        }
    })
}
