//! The strategy of the only rank: nobody to wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use phalanx_collectives::CommStats;
use phalanx_tensor::{FlatParam, Listener, ParamStore, StatsSync};

use crate::step::StepToken;
use crate::{ParallelStrategy, Result, ShardRole, ShardingError, StateBytes};

/// One rank, which holds and updates everything.
#[derive(Debug)]
pub struct Alone {
    params: Vec<FlatParam>,
    stepping: AtomicBool,
}

impl Alone {
    /// For the parameters of a store.
    pub fn new(store: &ParamStore) -> Self {
        Self { params: store.flat_params().to_vec(), stepping: AtomicBool::new(false) }
    }
}

impl Listener for Alone {}

impl ParallelStrategy for Alone {
    fn name(&self) -> &'static str {
        "alone"
    }

    fn params(&self) -> &[FlatParam] {
        &self.params
    }

    fn begin(&self, _: &StepToken) -> Result<()> {
        if self.stepping.swap(true, Ordering::Relaxed) {
            return Err(ShardingError::Step("one is under way already; finish or drop it first"));
        }
        self.params.iter().for_each(FlatParam::zero_grads);
        Ok(())
    }

    fn micro_batch(&self, _: &StepToken, _: bool) {}

    fn reduce(&self, _: &StepToken) -> Result<()> {
        Ok(())
    }

    fn end(&self, _: &StepToken, completed: bool) {
        self.stepping.store(false, Ordering::Relaxed);
        if !completed {
            self.params.iter().for_each(FlatParam::zero_grads);
        }
    }

    fn update(&self, change: &mut dyn FnMut(&[FlatParam]) -> phalanx_tensor::Result<()>) -> Result<()> {
        Ok(change(&self.params)?)
    }

    fn sum_owned(&self, _: &mut [f64]) -> Result<()> {
        Ok(())
    }

    fn sum(&self, _: &mut [f64]) -> Result<()> {
        Ok(())
    }

    fn stats_sync(&self, _: usize) -> Result<Option<Arc<dyn StatsSync>>> {
        Ok(None)
    }

    fn unshard(&self) -> Result<()> {
        Ok(())
    }

    fn reshard(&self) -> Result<()> {
        Ok(())
    }

    fn broadcast_state(&self, _: &ParamStore) -> Result<()> {
        Ok(())
    }

    fn broadcast_buffers(&self, _: &ParamStore) -> Result<()> {
        Ok(())
    }

    fn role(&self) -> ShardRole {
        ShardRole::ALONE
    }

    fn bytes(&self) -> StateBytes {
        StateBytes::of(&self.params)
    }

    fn peak_gathered_bytes(&self) -> u64 {
        0
    }

    fn stats(&self) -> CommStats {
        CommStats::default()
    }

    fn codec_state(&self) -> Vec<(String, Vec<f32>)> {
        Vec::new()
    }

    fn load_codec_state(&self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        match state.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(ShardingError::codec("none", format!("keeps nothing, but was given `{name}`")))
            }
        }
    }
}
