//! Values of parameters and buffers: at the start, and after they were loaded.

use candle_core::Tensor;
use phalanx_tensor::host::{HostSliceMut, copy_host, with_host_slice_mut};
use phalanx_tensor::{Key, ParamStore};

use super::bucket::fill_from;
use super::{DataParallel, Progress};
use crate::Result;
use crate::strategy::Held;

impl DataParallel {
    /// Puts all parameters of a bucket in place, or releases them.
    pub(super) fn place_whole(&self, state: &mut Progress, at: usize, whole: Option<Tensor>) -> Result<()> {
        for place in &self.places[self.buckets[at].members.clone()] {
            let view = |whole: &Tensor| whole.narrow(0, place.lies.start, place.lies.len());
            place.whole.set_values(whole.as_ref().map(view).transpose()?)?;
        }
        state.memory[at].whole = whole;
        Ok(())
    }

    /// Puts this rank's part of a bucket in place.
    fn place_own(&self, at: usize, own: &Tensor) -> Result<()> {
        let mut start = 0;
        for place in &self.places[self.buckets[at].members.clone()] {
            place.own.set_values(Some(own.narrow(0, start, place.range.len())?))?;
            start += place.range.len();
        }
        Ok(())
    }

    /// Lays the parameters of every bucket out in one buffer. Those that have no values yet are drawn: of buckets that
    /// leave memory between uses this rank's part only.
    pub(super) fn fill(&self, key: Key) -> Result<()> {
        let mut state = self.state();
        for (at, bucket) in self.buckets.iter().enumerate() {
            if bucket.trainable && self.strategy.placement.gradients == Held::Sharded {
                // What stays is allocated before what comes and goes, so that it does not end up between.
                state.memory[at].own_grads = Some(bucket.own_room()?);
            }
            let members = &self.places[bucket.members.clone()];
            if bucket.released && members.iter().all(|place| place.whole.values().is_none()) {
                let own = bucket.own_room()?;
                let drawn =
                    |place: &super::Place| Ok(place.whole.initial_values(key, place.range.clone())?);
                fill_from(&own, members.iter().map(drawn))?;
                self.place_own(at, &own)?;
                state.memory[at].own = Some(own);
                continue;
            }
            let values = |place: &super::Place| match place.whole.values() {
                Some(values) => Ok(values),
                None => Ok(place.whole.initial_values(key, 0..place.whole.len())?),
            };
            let whole = if let [place] = members {
                values(place)?
            } else {
                let whole = bucket.room()?;
                fill_from(&whole, members.iter().map(values))?;
                whole
            };
            self.place_whole(&mut state, at, Some(whole))?;
        }
        Ok(())
    }

    /// Makes all ranks' parameters and buffers equal to rank 0's, and keeps what the strategy says: at the start, and after
    /// loading a checkpoint into whole units ([`DataParallel::summon`] brings them into memory).
    ///
    /// # Errors
    /// Those of communication.
    pub fn broadcast_state(&self, store: &ParamStore) -> Result<()> {
        let mut state = self.state();
        for at in 0..self.buckets.len() {
            let Some(whole) = state.memory[at].whole.clone() else { continue };
            with_host_slice_mut(&whole, |slice| match slice {
                HostSliceMut::F32(values) => self.comm.broadcast(values, 0),
                HostSliceMut::F64(values) => self.comm.broadcast(values, 0),
            })??;
            self.keep_part(&mut state, at, &whole)?;
        }
        state.gathered = super::Gathered::default();
        drop(state);
        self.broadcast_buffers(store)
    }

    /// Takes this rank's part of a bucket's values over, and releases the whole if it is to be.
    fn keep_part(&self, state: &mut Progress, at: usize, whole: &Tensor) -> Result<()> {
        if !self.is_sharded() {
            return Ok(());
        }
        let bucket = &self.buckets[at];
        let part = whole.narrow(0, bucket.range.start, bucket.range.len())?;
        if !bucket.released {
            // A view: what the optimizer writes is in the whole at once.
            return self.place_own(at, &part);
        }
        match &state.memory[at].own {
            Some(own) => copy_host(own, &part)?,
            None => {
                // candle's copy of a view would keep all that the view is a part of.
                let own = part.force_contiguous()?;
                self.place_own(at, &own)?;
                state.memory[at].own = Some(own);
            }
        }
        self.place_whole(state, at, None)
    }

    /// Makes all ranks' buffers equal to rank 0's. Without synchronised batch norm every rank has running
    /// statistics of its own samples; rank 0's are the ones that are saved, as in PyTorch's DDP, so call this
    /// before an evaluation that is spread over ranks.
    ///
    /// # Errors
    /// Those of communication.
    pub fn broadcast_buffers(&self, store: &ParamStore) -> Result<()> {
        // All buffers travel as one message of f64, which holds f32 and counters below 2⁵³ exactly.
        let mut all = Vec::new();
        for buffer in store.buffers() {
            let flat = buffer.to_host()?.flatten_all()?.to_dtype(candle_core::DType::F64)?;
            all.extend(flat.to_vec1::<f64>()?);
        }
        self.comm.broadcast(&mut all, 0)?;
        if self.comm.rank() == 0 {
            return Ok(());
        }
        let mut rest = all.as_slice();
        for buffer in store.buffers() {
            let (own, later) = rest.split_at(buffer.shape().elem_count());
            rest = later;
            let tensor = Tensor::from_slice(own, buffer.shape(), &candle_core::Device::Cpu)?;
            buffer.set(&tensor)?;
        }
        Ok(())
    }
}
