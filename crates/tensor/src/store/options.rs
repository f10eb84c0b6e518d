//! Options of a parameter store.

use std::sync::Arc;

use candle_core::DType;

use super::{ParamLayout, ParamRules};
use crate::Key;
use crate::backend::ComputeDevice;

/// The layout of a store and the source of its initial values.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// The key of all initial values.
    pub key: Key,
    /// The element type of parameters and floating-point buffers.
    pub dtype: DType,
    /// The device that computes with the parameters and holds the buffers.
    pub device: ComputeDevice,
    /// True to keep the parameters of blocks on the host. The strategy uploads them to `device` before each use, and initial
    /// values are made on the host. Parameters outside of blocks stay on `device`, because no listener announces their use.
    pub offload: bool,
    /// True to exempt parameters with fewer than two dimensions (norms and biases) from weight decay.
    pub decay_matrices_only: bool,
    /// Rules about parameters by name: which are frozen, and factors of learning rates.
    pub rules: Arc<ParamRules>,
    /// The portions of parameters that this rank holds; `None` if it holds whole ones.
    pub layout: Option<Arc<dyn ParamLayout>>,
    /// True to fill in initial values. Otherwise the parameters have none, for a strategy that fills shards.
    pub fill: bool,
    /// True to fill in zeros in place of initial values, where others are loaded.
    pub zeros: bool,
    /// Largest size in bytes of a group of parameters. A block with more is split into several groups, between parameters. A
    /// single parameter may be larger.
    pub unit_bytes: usize,
    /// Size in bytes up to which consecutive groups share a bucket, and so one message of every collective. A message has a
    /// fixed cost, but merged groups wait for each other. 0 gives every group its own bucket.
    pub bucket_bytes: usize,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            key: Key::new(0),
            dtype: DType::F32,
            device: ComputeDevice::host(),
            offload: false,
            decay_matrices_only: false,
            rules: Arc::default(),
            layout: None,
            fill: true,
            zeros: false,
            unit_bytes: usize::MAX,
            bucket_bytes: 1 << 20,
        }
    }
}
