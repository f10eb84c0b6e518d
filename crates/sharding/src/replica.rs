//! A rank's own copy of the whole model, for strategies whose ranks do not take every step together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use phalanx_collectives::{Algorithm, Communicator, ReduceOp, threads};
use phalanx_tensor::{FlatParam, FlatStorage, ParamState, ParamStore, ProcessGroup};

use crate::agreement::{broadcast_buffers, check_same_model};
use crate::buffer::{InPlace, with_singles};
use crate::parallel::Saved;
use crate::process_group::RankGroup;
use crate::{Result, ShardingError};

/// What a rank's own parameters of a bucket are saved as.
fn own_name(bucket: usize) -> String {
    format!("local.{bucket}")
}

/// The whole model in this rank's memory, the protocol of its steps, and what all such strategies do alike.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) comm: Communicator,
    /// The ranks of `comm`, for sums of parameters and gradients, which go the way that the caller asks for.
    pub(crate) by: Communicator,
    /// The buckets, in forward order.
    pub(crate) params: Vec<FlatParam>,
    /// A group of this rank alone: what depends on all of a batch depends on this rank's samples.
    alone: Communicator,
    name: &'static str,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a step is under way.
    open: bool,
    /// Whether more micro-batches follow.
    accumulating: bool,
    /// By bucket, this rank's own parameters while something else is in their place.
    kept: Option<Vec<Vec<f32>>>,
}

impl Replica {
    /// Checks that all ranks built the same model on the host, in f32, and fills what is not filled.
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

    /// Checks as [`Replica::new`] does, and has nothing of the model: for a rank that only serves.
    pub(crate) fn empty(store: &ParamStore, by: Communicator, name: &'static str) -> Result<Self> {
        Self::checked(store, by, name, false)
    }

    fn checked(store: &ParamStore, by: Communicator, name: &'static str, keeps: bool) -> Result<Self> {
        let comm = by.preferring(Algorithm::Auto);
        let params = store.flat_params().to_vec();
        for param in &params {
            let first = || param.entries().first().map(|entry| entry.name.clone()).unwrap_or_default();
            if param.dtype() != candle_core::DType::F32 {
                let problem =
                    format!("trains parameters of f32; `{}` is of {}", first(), param.dtype().as_str());
                return Err(ShardingError::strategy(name, problem));
            }
            if !param.place().is_host() {
                let problem = format!("trains parameters in the host's memory; `{}` lies on a GPU", first());
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
                    param.fill_shard(FlatStorage::zeros(0, param.dtype(), param.place())?)?;
                }
                // It has let go of it already.
                _ => {}
            }
        }
        let alone = threads(1)?.pop();
        let alone = alone.ok_or_else(|| ShardingError::Mesh("a world has at least one rank".into()))?;
        Ok(Self { comm, by, params, alone, name, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Trainable buckets.
    pub(crate) fn trainable(&self) -> impl DoubleEndedIterator<Item = (usize, &FlatParam)> {
        self.params.iter().enumerate().filter(|(_, param)| param.trainable())
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
        self.params.iter().for_each(FlatParam::zero_grads);
        (state.open, state.accumulating) = (true, false);
        Ok(())
    }

    pub(crate) fn micro_batch(&self, more: bool) {
        self.state().accumulating = more;
    }

    pub(crate) fn end(&self, completed: bool) {
        self.state().open = false;
        if !completed {
            self.params.iter().for_each(FlatParam::forget_grads);
        }
    }

    /// Whether a step is under way.
    pub(crate) fn is_open(&self) -> bool {
        self.state().open
    }

    /// Gradients of a bucket have come: its number, if it is of this model and no more micro-batches follow.
    pub(crate) fn complete(&self, param: &FlatParam) -> Result<Option<usize>> {
        if !self.params.get(param.index()).is_some_and(|own| own.is(param)) {
            return Ok(None);
        }
        let state = self.state();
        if !state.open {
            return Err(ShardingError::Step("gradients came outside of any; begin one before backward"));
        }
        Ok((!state.accumulating).then(|| param.index()))
    }

    /// This rank alone, as a group.
    pub(crate) fn group(&self) -> Arc<dyn ProcessGroup> {
        RankGroup::of(&self.alone)
    }

    /// The values of a bucket.
    pub(crate) fn values(&self, at: usize) -> Result<Vec<f32>> {
        self.with_values(at, |values| values.to_vec())
    }

    /// The values of all buckets; those of frozen ones are empty.
    pub(crate) fn all_values(&self) -> Result<Vec<Vec<f32>>> {
        let of = |(at, param): (usize, &FlatParam)| {
            if param.trainable() { self.values(at) } else { Ok(Vec::new()) }
        };
        self.params.iter().enumerate().map(of).collect()
    }

    /// Puts values in the place of all trained parameters, by bucket.
    pub(crate) fn put(&self, values: &[Vec<f32>]) -> Result<()> {
        self.trainable().try_for_each(|(at, _)| self.with_values(at, |own| own.copy_from_slice(&values[at])))
    }

    /// Runs something on the values of a bucket.
    pub(crate) fn with_values<R>(&self, at: usize, f: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
        let Some(values) = self.params[at].values() else {
            return Err(ShardingError::state(self.name, format!("bucket {at} has no values")));
        };
        Ok(with_singles(&values, f)?)
    }

    /// Multiplies all gradients by a factor.
    pub(crate) fn scale_gradients(&self, factor: f64) -> Result<()> {
        if (factor - 1.0).abs() > 0.0 {
            for (_, param) in self.trainable() {
                let Some(grads) = param.grads()? else { continue };
                with_singles(&grads, |grads| grads.iter_mut().for_each(|g| *g *= factor as f32))?;
            }
        }
        Ok(())
    }

    /// Makes the parameters of all ranks equal to rank 0's.
    pub(crate) fn broadcast_params(&self) -> Result<()> {
        for param in &self.params {
            let Some(values) = param.values().filter(|_| self.ranks() > 1) else { continue };
            self.comm.broadcast(&mut InPlace::new(values)?, 0)?;
        }
        Ok(())
    }

    pub(crate) fn broadcast_buffers(&self, store: &ParamStore) -> Result<()> {
        broadcast_buffers(store, &self.comm)
    }

    pub(crate) fn sum(&self, values: &mut [f64]) -> Result<()> {
        Ok(self.comm.all_reduce(values, ReduceOp::Sum)?)
    }

    /// Makes every rank's trained parameters their mean over the ranks.
    pub(crate) fn average(&self) -> Result<()> {
        if self.ranks() == 1 {
            return Ok(());
        }
        let mut coming = Vec::new();
        for (at, param) in self.trainable() {
            if let Some(values) = param.values() {
                coming.push((at, self.by.all_reduce_async(InPlace::new(values)?, ReduceOp::Sum)));
            }
        }
        let ranks = self.ranks() as f32;
        for (at, handle) in coming {
            handle.wait()?;
            self.with_values(at, |values| values.iter_mut().for_each(|value| *value /= ranks))?;
        }
        Ok(())
    }

    /// Puts the mean over the ranks in the place of this rank's parameters, which are kept aside. How far the ranks are from it:
    /// the root of the mean square distance.
    pub(crate) fn show_mean(&self) -> Result<Option<f64>> {
        if !self.keep_aside()? {
            return Ok(None);
        }
        self.average()?;
        let mut square = [0.0];
        for (at, own) in self.state().kept.iter().flatten().enumerate() {
            square[0] += self.with_values(at, |mean| {
                own.iter().zip(mean).map(|(own, mean)| f64::from(*own - *mean).powi(2)).sum::<f64>()
            })?;
        }
        self.sum(&mut square)?;
        Ok(Some((square[0] / self.ranks() as f64).sqrt()))
    }

    /// Keeps this rank's parameters aside, in whose place something else is about to be put. False if something is there already.
    pub(crate) fn keep_aside(&self) -> Result<bool> {
        if self.state().kept.is_some() {
            return Ok(false);
        }
        let own = (0..self.params.len()).map(|at| self.values(at)).collect::<Result<Vec<_>>>()?;
        self.state().kept = Some(own);
        Ok(true)
    }

    /// Puts this rank's own parameters back, if something else is in their place.
    pub(crate) fn show_own(&self) -> Result<()> {
        let Some(own) = self.state().kept.take() else { return Ok(()) };
        own.iter()
            .enumerate()
            .try_for_each(|(at, own)| self.with_values(at, |values| values.copy_from_slice(own)))
    }

    /// Puts what was saved of this rank's own parameters in their place.
    pub(crate) fn load_own(&self, saved: &mut Saved) -> Result<()> {
        for (at, param) in self.trainable() {
            let own = saved.take(&own_name(at), param.len())?;
            self.with_values(at, |values| values.copy_from_slice(&own))?;
        }
        Ok(())
    }

    /// Adds this rank's own parameters to what is saved, by bucket as `values` gives them.
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

    /// Bytes of parameters that are kept aside.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.state().kept.iter().flatten().map(|own| 4 * own.len() as u64).sum()
    }

    /// Bytes of parameters and of gradients.
    pub(crate) fn held(&self) -> [u64; 2] {
        let held = self.params.iter().map(FlatParam::held_bytes);
        held.fold([0; 2], |sum, held| [0, 1].map(|of| sum[of] + held[of] as u64))
    }
}
