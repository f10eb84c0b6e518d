//! Buckets: consecutive parameters in one memory, their gradients, and the elements that a rank owns.

mod gradients;
#[cfg(test)]
mod tests;
mod unreduced;
mod values;

pub use gradients::GradState;
pub use unreduced::UnreducedGrads;
pub use values::ParamState;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use candle_core::{DType, Device, Shape};

use gradients::Gradients;
use values::Values;

use super::layout::{BucketLayout, meet};
use super::spec::Trained;
use super::{BucketEntry, FlatStorage, OwnedGroup, ParamGroup};
use crate::Key;
use crate::backend::{ComputeDevice, MemoryKind, counted_as};
use crate::{Result, TensorError};

/// Consecutive parameters, and the only owner of their memory: all values, this rank's shard of them, all gradients,
/// and the shard of those.
///
/// A bucket is the unit of gathering, reduction and update (the flat parameter of FSDP, Zhao et al. 2023, and the
/// bucket of DDP, Li et al. 2020). The values are in a state of [`ParamState`], the gradients in a state of
/// [`GradState`]; methods that change a state check the current one.
///
/// A rank *owns* some elements ([`ParamBucket::owned`]), at first all. Its optimizer, clipping and averages act on
/// these. Clones are handles.
#[derive(Debug, Clone)]
pub struct ParamBucket(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    index: usize,
    layout: BucketLayout,
    device: ComputeDevice,
    storage_device: ComputeDevice,
    /// True while the parameters are constants.
    frozen: AtomicBool,
    memory: RwLock<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    owned: Range<usize>,
    values: Values,
    gradients: Gradients,
}

impl ParamBucket {
    /// Makes a bucket that computes on `device` and is kept on `storage_device` between uses.
    pub(super) fn new(
        index: usize,
        layout: BucketLayout,
        (device, storage_device): (ComputeDevice, ComputeDevice),
    ) -> Self {
        let memory = Memory { owned: 0..layout.len(), ..Memory::default() };
        let (frozen, memory) = (AtomicBool::new(layout.trained != Trained::Always), RwLock::new(memory));
        Self(Arc::new(Inner { index, layout, device, storage_device, frozen, memory }))
    }

    /// Makes an empty bucket of this layout on the host, for a parameter server: it stores and updates values that
    /// other ranks compute with.
    #[must_use]
    pub fn empty_on_host(&self) -> Self {
        Self::new(self.index(), self.0.layout.clone(), (ComputeDevice::host(), ComputeDevice::host()))
    }

    /// The stages of a pipeline that hold the parameters, if there are several: the gradient is the sum of theirs.
    pub fn stages(&self) -> &[usize] {
        &self.0.layout.stages
    }

    /// True if both handles are of the same bucket.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The position in the store, in forward order.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// True if gradients are computed, at least later. There is memory for them, and for the optimizer's state.
    pub fn trainable(&self) -> bool {
        self.0.layout.trained != Trained::Never
    }

    /// True if the parameters are frozen at first and trained later.
    pub fn is_trained_later(&self) -> bool {
        self.0.layout.trained == Trained::Later
    }

    /// True while the parameters are constants: no gradients are computed, no rank sends any, and no update changes the
    /// parameters, their optimizer state and their averages.
    pub fn is_frozen(&self) -> bool {
        self.0.frozen.load(Ordering::Relaxed)
    }

    /// Freezes or unfreezes parameters that are trained later, between two steps and on all ranks alike. Others stay as they
    /// are.
    pub fn set_frozen(&self, frozen: bool) {
        if self.is_trained_later() {
            self.0.frozen.store(frozen, Ordering::Relaxed);
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.layout.dtype
    }

    /// The device that computes with the values and computes the gradients.
    pub fn device(&self) -> &ComputeDevice {
        &self.0.device
    }

    /// The device that keeps the values between uses, and the summed gradients: [`ParamBucket::device`], or the host.
    pub fn storage_device(&self) -> &ComputeDevice {
        &self.0.storage_device
    }

    /// True if values are kept on the host and uploaded to a device before each use.
    pub fn is_offloaded(&self) -> bool {
        self.storage_device().is_host() && !self.device().is_host()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.0.layout.len()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of all values in bytes.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype().size_in_bytes()
    }

    /// The parameters in order.
    pub fn entries(&self) -> &[BucketEntry] {
        &self.0.layout.entries
    }

    /// The groups of parameters in order, each of one block, with one weight decay and one factor of the learning rate.
    pub fn groups(&self) -> &[ParamGroup] {
        &self.0.layout.groups
    }

    /// The blocks of the parameters, in order. Parameters outside of blocks have an empty name and a bucket of their
    /// own.
    pub fn blocks(&self) -> impl Iterator<Item = &str> {
        let groups = self.groups();
        let first = |at: &usize| groups[..*at].iter().all(|group| group.block != groups[*at].block);
        (0..groups.len()).filter(first).map(|at| groups[at].block.as_str())
    }

    /// True if the parameters are outside of blocks, so that no listener announces their use.
    pub fn is_outside(&self) -> bool {
        self.groups().iter().all(|group| group.block.is_empty())
    }

    /// The elements that this rank owns.
    pub fn owned(&self) -> Range<usize> {
        self.memory().owned.clone()
    }

    /// Sets the elements that this rank owns, and discards gradients.
    ///
    /// # Errors
    /// [`TensorError::BucketState`] once the values are sharded; [`TensorError::Argument`] if the range is not
    /// inside.
    pub fn set_owned(&self, range: Range<usize>) -> Result<()> {
        if range.start > range.end || range.end > self.len() {
            let (value, expected) = (format!("{range:?} of {}", self.len()), "expected a range inside");
            return Err(TensorError::Argument { name: "owned elements", value, expected });
        }
        let mut memory = self.memory_mut();
        match &memory.values {
            Values::Absent | Values::Full(_) => {
                memory.owned = range;
                memory.gradients = Gradients::default();
                Ok(())
            }
            values => Err(self.wrong(values.state(), "change the owned elements", "Absent or Full")),
        }
    }

    /// The owned parameters, or owned parts of them; ranges count from the first owned element. If the rank owns all
    /// elements, the entries have the parameters' shapes; otherwise they are flat.
    pub fn owned_entries(&self) -> Vec<BucketEntry> {
        let owned = self.owned();
        if owned == (0..self.len()) {
            return self.entries().to_vec();
        }
        let entries = self.entries().iter().filter_map(|entry| {
            let range = meet(&entry.range, &owned)?;
            let first = owned.start + range.start - entry.range.start;
            let (part, shape) = (first..first + range.len(), Shape::from(range.len()));
            Some(BucketEntry { shape, range, part, ..entry.clone() })
        });
        entries.collect()
    }

    /// The owned elements of each group. Groups without owned elements are left out.
    pub fn owned_groups(&self) -> Vec<OwnedGroup> {
        let owned = self.owned();
        let of = |group: &ParamGroup| {
            let &ParamGroup { decay, rate, counts, .. } = group;
            Some(OwnedGroup { range: meet(&group.range, &owned)?, decay, rate, counts })
        };
        self.groups().iter().filter_map(of).collect()
    }

    /// Computes the initial values of elements `range` from the key and the parameters' names alone, on the storage
    /// device.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn initial_values(&self, key: Key, range: Range<usize>) -> Result<FlatStorage> {
        const CHUNK: usize = 1 << 16;
        let mut scratch = vec![0.0_f64; CHUNK.min(range.len())];
        let mut narrow = Vec::new();
        let mut wide = Vec::new();
        let single = self.dtype() == DType::F32;
        if single {
            narrow.reserve_exact(range.len());
        } else {
            wide.reserve_exact(range.len());
        }
        for entry in self.entries() {
            let Some(met) = meet(&range, &entry.range) else { continue };
            let key = key.stream(&entry.name);
            for start in met.clone().step_by(CHUNK) {
                let chunk = start..(start + CHUNK).min(met.end);
                let out = &mut scratch[..chunk.len()];
                entry.initial_values(key, chunk, out);
                if single {
                    narrow.extend(out.iter().map(|v| *v as f32));
                } else {
                    wide.extend_from_slice(out);
                }
            }
        }
        let (len, host) = (range.len(), &Device::Cpu);
        let flat = match single {
            true => candle_core::Tensor::from_vec(narrow, len, host)?,
            false => candle_core::Tensor::from_vec(wide, len, host)?.to_dtype(self.dtype())?,
        };
        FlatStorage::new(counted_as(MemoryKind::Parameters, || self.storage_device().put(&flat))?)
    }

    /// Memory of parameters and of gradients now, in bytes. Elements that are stored twice count twice.
    pub fn held_bytes(&self) -> [usize; 2] {
        let memory = self.memory();
        [memory.values.bytes(), memory.gradients.bytes()]
    }

    fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.0.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory_mut(&self) -> RwLockWriteGuard<'_, Memory> {
        self.0.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the length and the type of memory for this bucket.
    fn check(&self, flat: &FlatStorage, len: usize) -> Result<()> {
        if flat.len() != len {
            return Err(TensorError::unequal("bucket", &Shape::from(len), &Shape::from(flat.len())));
        }
        if flat.dtype() != self.dtype() {
            return Err(TensorError::dtype("bucket", flat.dtype()));
        }
        Ok(())
    }

    /// Returns the error of a transition from a wrong state.
    fn wrong(
        &self,
        is: impl std::fmt::Debug,
        operation: &'static str,
        expected: &'static str,
    ) -> TensorError {
        let name = self.entries().first().map(|entry| entry.name.clone()).unwrap_or_default();
        TensorError::BucketState { index: self.index(), name, is: format!("{is:?}"), operation, expected }
    }
}
