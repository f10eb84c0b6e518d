//! Construction of a parameter store.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::layout::lay_out;
use super::scope::{Registry, Scope};
use super::spec::ParamSpec;
use super::{BuildOptions, FlatStorage, Param, ParamBucket, ParamStore};
use crate::Result;
use crate::backend::{ComputeDevice, MemoryKind, counted_as};

/// Collects a model's parameters and buffers.
///
/// ```
/// use phalanx_tensor::{BuildOptions, Init, StoreBuilder};
///
/// # fn main() -> Result<(), phalanx_tensor::TensorError> {
/// let builder = StoreBuilder::new(BuildOptions::default());
/// let head = builder.root().pp("head").block();
/// let weight = head.param("weight", (10, 4), Init::TorchDefault)?;
/// let store = builder.build()?;
/// assert_eq!(weight.name(), "head.weight");
/// assert_eq!(store.num_parameters(), 40);
/// assert_eq!(store.buckets()[0].groups()[0].block, "head");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct StoreBuilder {
    options: BuildOptions,
    registry: Rc<RefCell<Registry>>,
}

impl StoreBuilder {
    /// Makes an empty builder.
    pub fn new(options: BuildOptions) -> Self {
        Self { options, registry: Rc::default() }
    }

    /// Returns the scope without a prefix.
    pub fn root(&self) -> Scope {
        Scope::root(&self.options, self.registry.clone())
    }

    /// Lays out all parameters, fills them, and returns the store.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn build(self) -> Result<ParamStore> {
        let registry = std::mem::take(&mut *self.registry.borrow_mut());
        let options = self.options;
        let mut buckets = Vec::new();
        let mut unplaced =
            registry.params.iter().map(|param| (param.name(), param)).collect::<BTreeMap<_, _>>();
        let specs: Vec<&ParamSpec> = registry.params.iter().map(Param::spec).collect();
        for (index, layout) in lay_out(&specs, &options).into_iter().enumerate() {
            let announced = layout.groups.iter().any(|group| !group.block.is_empty());
            let storage_device =
                if options.offload && announced { ComputeDevice::host() } else { options.device.clone() };
            let bucket = ParamBucket::new(index, layout, (options.device.clone(), storage_device));
            for (entry, of) in bucket.entries().iter().enumerate() {
                if let Some(param) = unplaced.remove(of.name.as_str()) {
                    param.place_in(bucket.clone(), entry);
                }
            }
            if options.fill && options.zeros {
                let zeros = || FlatStorage::zeros(bucket.len(), bucket.dtype(), bucket.storage_device());
                bucket.fill(counted_as(MemoryKind::Parameters, zeros)?)?;
            } else if options.fill {
                bucket.fill(bucket.initial_values(options.key, 0..bucket.len())?)?;
            }
            buckets.push(bucket);
        }
        Ok(ParamStore {
            key: options.key,
            params: registry.params,
            buffers: registry.buffers,
            buckets,
            by_name: registry.by_name,
            adapted: registry.adapted,
            elsewhere: registry.elsewhere,
        })
    }
}
