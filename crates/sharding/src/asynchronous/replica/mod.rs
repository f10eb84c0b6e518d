//! A rank's own copy of the whole model, for strategies whose ranks do not take every step together.
//!
//! The copy is in the memory that the model computes with, on the host or on a device. Collectives exchange it there.
//! Messages exchange it on the host; a [`Mirror`] then holds the host copy of a device's values.

mod mirror;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use phalanx_collectives::{Algorithm, Communicator, ReduceOp};
use phalanx_tensor::{Array, FlatStorage, ParamBucket, ParamState, ParamStore, ProcessGroup};

use self::mirror::Mirror;
use crate::consensus::{any_of, broadcast_buffers, check_same_model};
use crate::mesh::process_group::SingleRankGroup;
use crate::parallel::SavedState;
use crate::reduction_math::{divide, numbers, scale, square_distance, write};
use crate::{Result, ShardingError};
use phalanx_codecs::buffer::{InPlace, with_singles};

/// The name of a rank's own parameters of a bucket in a checkpoint.
fn own_name(bucket: usize) -> String {
    format!("local.{bucket}")
}

/// The whole model in this rank's memory, the protocol of its steps, and the operations that these strategies share.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) comm: Communicator,
    /// A communicator for sums of parameters and gradients, by the algorithm that the caller prefers.
    pub(crate) by: Communicator,
    /// The buckets, in forward order.
    pub(crate) params: Vec<ParamBucket>,
    /// Host copies of values on a device, if ranks exchange them on the host.
    mirror: Option<Mirror>,
    name: &'static str,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// True while a step is open.
    open: bool,
    /// True if more micro-batches follow.
    accumulating: bool,
    /// The saved parameters of this rank, by trainable bucket, while the model has other values.
    kept: Option<Vec<(usize, FlatStorage)>>,
}

impl Replica {
    /// Checks that all ranks built the same model in f32, and initialises missing values.
    pub(crate) fn new(store: &ParamStore, by: Communicator, name: &'static str) -> Result<Self> {
        let this = Self::checked(store, by, name, true)?;
        for param in &this.params {
            param.set_owned(0..param.len())?;
            if param.state() == ParamState::Absent {
                param.fill(param.initial_values(store.key(), 0..param.len())?)?;
            }
            if param.trainable() {
                param.reserve_grads(false)?;
            }
        }
        Ok(this)
    }

    /// Like [`Replica::new`], for ranks that exchange values on the host.
    pub(crate) fn exchanged_on_host(
        store: &ParamStore,
        by: Communicator,
        name: &'static str,
    ) -> Result<Self> {
        let mut this = Self::new(store, by, name)?;
        if this.params.iter().any(|param| !param.device().is_host()) {
            this.mirror = Some(Mirror::new(this.params.len()));
            this.refresh()?;
        }
        Ok(this)
    }

    /// Like [`Replica::new`], without any values, for a rank that only serves.
    pub(crate) fn empty(store: &ParamStore, by: Communicator, name: &'static str) -> Result<Self> {
        Self::checked(store, by, name, false)
    }

    fn checked(store: &ParamStore, by: Communicator, name: &'static str, keeps: bool) -> Result<Self> {
        let comm = by.preferring(Algorithm::Auto);
        let params = store.buckets().to_vec();
        for param in &params {
            let first = || param.entries().first().map(|entry| entry.name.clone()).unwrap_or_default();
            if param.dtype() != candle_core::DType::F32 {
                let problem =
                    format!("trains parameters of f32; `{}` is of {}", first(), param.dtype().as_str());
                return Err(ShardingError::strategy(name, problem));
            }
            if param.is_offloaded() {
                let problem = format!(
                    "trains parameters that stay where they are computed with; `{}` is kept on the host and comes with blocks, as \
                     `ddp`, `fsdp` and `hsdp` can have it",
                    first()
                );
                return Err(ShardingError::strategy(name, problem));
            }
        }
        check_same_model(store, &comm)?;
        for param in params.iter().filter(|_| !keeps) {
            match param.state() {
                ParamState::Full => {
                    param.set_owned(0..0)?;
                    param.shard()?;
                }
                ParamState::Absent => {
                    param.set_owned(0..0)?;
                    param.fill_shard(FlatStorage::zeros(0, param.dtype(), param.device())?)?;
                }
                // Its memory is freed already.
                _ => {}
            }
        }
        Ok(Self { comm, by, params, mirror: None, name, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the trainable buckets.
    pub(crate) fn trainable(&self) -> impl DoubleEndedIterator<Item = (usize, &ParamBucket)> {
        self.params.iter().enumerate().filter(|(_, param)| param.trainable())
    }

    /// Returns the buckets that are trained now. The others are equal on all ranks, which need not exchange them.
    pub(crate) fn trained(&self) -> impl DoubleEndedIterator<Item = (usize, &ParamBucket)> {
        self.trainable().filter(|(_, param)| !param.is_frozen())
    }

    pub(crate) fn ranks(&self) -> usize {
        self.comm.world_size()
    }

    /// Begins a step with gradients of zero.
    pub(crate) fn begin(&self) -> Result<()> {
        let mut state = self.state();
        if state.open {
            return Err(ShardingError::Step("one is under way already; finish or drop it first"));
        }
        self.params.iter().for_each(ParamBucket::zero_grads);
        (state.open, state.accumulating) = (true, false);
        Ok(())
    }

    pub(crate) fn micro_batch(&self, more: bool) {
        self.state().accumulating = more;
    }

    pub(crate) fn end(&self, completed: bool) {
        self.state().open = false;
        if !completed {
            self.params.iter().for_each(ParamBucket::forget_grads);
        }
    }

    /// True while a step is under way.
    pub(crate) fn is_open(&self) -> bool {
        self.state().open
    }

    /// Returns the number of a bucket whose gradients are complete; `None` for another model, or if more micro-batches
    /// follow.
    pub(crate) fn complete(&self, param: &ParamBucket) -> Result<Option<usize>> {
        if !self.params.get(param.index()).is_some_and(|own| own.is(param)) {
            return Ok(None);
        }
        let state = self.state();
        if !state.open {
            return Err(ShardingError::Step("gradients came outside of any; begin one before backward"));
        }
        Ok((!state.accumulating).then(|| param.index()))
    }

    /// Returns the group of this rank alone: batch statistics depend on this rank's samples only.
    pub(crate) fn group() -> Arc<dyn ProcessGroup> {
        Arc::new(SingleRankGroup)
    }

    /// Returns the values of a bucket that ranks exchange: the model's, or their host copy.
    pub(crate) fn here(&self, at: usize) -> Result<FlatStorage> {
        if let Some(mirror) = self.mirror.as_ref().filter(|_| self.params[at].trainable()) {
            return mirror.values(at);
        }
        let missing = || ShardingError::state(self.name, format!("bucket {at} has no values"));
        self.params[at].values().ok_or_else(missing)
    }

    /// Copies a change of [`Replica::here`] to the model.
    pub(crate) fn changed(&self, at: usize) -> Result<()> {
        match (&self.mirror, self.params[at].values()) {
            (Some(mirror), Some(values)) => with_singles(&mirror.values(at)?, |own| write(&values, own))?,
            _ => Ok(()),
        }
    }

    /// Copies a change of the model to the values that ranks exchange.
    pub(crate) fn refresh(&self) -> Result<()> {
        self.mirror.as_ref().map_or(Ok(()), |mirror| mirror.refresh(self.trainable()))
    }

    /// Returns a copy of the values of a bucket.
    pub(crate) fn values(&self, at: usize) -> Result<Vec<f32>> {
        numbers(&self.here(at)?)
    }

    /// Returns the values of all buckets; empty for frozen ones.
    pub(crate) fn all_values(&self) -> Result<Vec<Vec<f32>>> {
        let of = |(at, param): (usize, &ParamBucket)| {
            if param.trainable() { self.values(at) } else { Ok(Vec::new()) }
        };
        self.params.iter().enumerate().map(of).collect()
    }

    /// Replaces all trained parameters by values, by bucket.
    pub(crate) fn put(&self, values: &[Vec<f32>]) -> Result<()> {
        self.trainable()
            .try_for_each(|(at, _)| self.change_values(at, |own| own.copy_from_slice(&values[at])))
    }

    /// Calls `f` with the host values of a bucket.
    pub(crate) fn with_values<R>(&self, at: usize, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
        Ok(with_singles(&self.here(at)?, |values| f(values))?)
    }

    /// Calls `f` to change the host values of a bucket.
    pub(crate) fn change_values<R>(&self, at: usize, f: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
        let changed = with_singles(&self.here(at)?, f)?;
        self.changed(at)?;
        Ok(changed)
    }

    /// Multiplies all gradients by a factor.
    pub(crate) fn scale_gradients(&self, factor: f64) -> Result<()> {
        if (factor - 1.0).abs() > 0.0 {
            for (_, param) in self.trainable() {
                param.grads()?.map_or(Ok(()), |grads| scale(&grads, factor))?;
            }
        }
        Ok(())
    }

    /// Makes the parameters of all ranks equal to rank 0's.
    pub(crate) fn broadcast_params(&self) -> Result<()> {
        for param in &self.params {
            let Some(values) = param.values().filter(|_| self.ranks() > 1) else { continue };
            match &self.mirror {
                None => self.comm.broadcast(&mut InPlace::new(values)?, 0)?,
                Some(_) => {
                    let mut own = numbers(&values)?;
                    self.comm.broadcast(&mut own, 0)?;
                    write(&values, &own)?;
                }
            }
        }
        self.refresh()
    }

    pub(crate) fn broadcast_buffers(&self, store: &ParamStore) -> Result<()> {
        broadcast_buffers(store, &self.comm)
    }

    pub(crate) fn sum(&self, values: &mut [f64]) -> Result<()> {
        Ok(self.comm.all_reduce(values, ReduceOp::Sum)?)
    }

    /// Replaces a flag by 1 if the flag of any rank is 1.
    pub(crate) fn any(&self, flag: &Array) -> Result<()> {
        any_of(flag, &self.comm)
    }

    /// Replaces the trained parameters by their mean over the ranks.
    pub(crate) fn average(&self) -> Result<()> {
        if self.ranks() == 1 {
            return Ok(());
        }
        let mut coming = Vec::new();
        for (at, _) in self.trained() {
            let values = InPlace::new(self.here(at)?)?;
            coming.push((at, self.by.all_reduce_async(values, ReduceOp::Sum)));
        }
        for (at, handle) in coming {
            divide(handle.wait()?.flat(), self.ranks())?;
            self.changed(at)?;
        }
        Ok(())
    }

    /// Replaces the parameters by their mean over the ranks and saves this rank's own. Returns the root mean square
    /// distance of the ranks from the mean.
    pub(crate) fn show_mean(&self) -> Result<Option<f64>> {
        if !self.keep_aside()? {
            return Ok(None);
        }
        self.average()?;
        let mut square = [0.0];
        for (at, own) in self.state().kept.iter().flatten() {
            square[0] += square_distance(own, &self.here(*at)?)?;
        }
        self.sum(&mut square)?;
        Ok(Some((square[0] / self.ranks() as f64).sqrt()))
    }

    /// Saves this rank's parameters before they are replaced. Returns false if they are saved already.
    pub(crate) fn keep_aside(&self) -> Result<bool> {
        if self.state().kept.is_some() {
            return Ok(false);
        }
        let own = self.trainable().map(|(at, _)| Ok((at, self.here(at)?.copy()?)));
        let own = own.collect::<Result<Vec<_>>>()?;
        self.state().kept = Some(own);
        Ok(true)
    }

    /// Restores this rank's own parameters if they were replaced.
    pub(crate) fn show_own(&self) -> Result<()> {
        let Some(own) = self.state().kept.take() else { return Ok(()) };
        for (at, own) in &own {
            self.here(*at)?.copy_from(own)?;
            self.changed(*at)?;
        }
        Ok(())
    }

    /// Loads this rank's own parameters from a checkpoint.
    pub(crate) fn load_own(&self, saved: &mut SavedState) -> Result<()> {
        for (at, param) in self.trainable() {
            write(&self.here(at)?, &saved.take(&own_name(at), param.len())?)?;
            self.changed(at)?;
        }
        Ok(())
    }

    /// Adds this rank's own parameters to a checkpoint, by bucket, as `values` returns them.
    pub(crate) fn save_own(
        &self,
        saved: &mut Vec<(String, Vec<f32>)>,
        values: impl Fn(usize) -> Result<Vec<f32>>,
    ) -> Result<()> {
        for (at, _) in self.trainable() {
            saved.push((own_name(at), values(at)?));
        }
        Ok(())
    }

    /// Returns the bytes of saved parameters and of host copies of device values.
    pub(crate) fn kept_bytes(&self) -> u64 {
        let kept: usize = self.state().kept.iter().flatten().map(|(_, own)| own.bytes()).sum();
        kept as u64 + self.mirror.as_ref().map_or(0, Mirror::bytes)
    }

    /// Returns the bytes of parameters and of gradients.
    pub(crate) fn held(&self) -> [u64; 2] {
        let held = self.params.iter().map(ParamBucket::held_bytes);
        held.fold([0; 2], |sum, held| [0, 1].map(|of| sum[of] + held[of] as u64))
    }
}
