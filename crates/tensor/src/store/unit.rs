//! A flat unit: all parameters of one block that are treated alike, in one contiguous buffer.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use candle_core::{DType, Device, Shape, Tensor};

use crate::Result;
use crate::init::Init;
use crate::rng::Key;
use crate::storage;

/// Parameters of one block with one element type, all trainable or all frozen, all decayed or none.
///
/// Values and gradients are one-dimensional tensors of [`Unit::len`] elements; a parameter is a range of them.
/// One collective moves a whole unit and the optimizer runs on its flat slices. Clones are handles.
#[derive(Debug, Clone)]
pub struct Unit(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    index: usize,
    block: String,
    trainable: bool,
    decay: bool,
    dtype: DType,
    device: Device,
    len: usize,
    entries: Vec<UnitEntry>,
    memory: RwLock<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    values: Option<Tensor>,
    grads: Option<Tensor>,
    /// For each entry whether its gradient counts as zero although older numbers are still in its memory: the first
    /// gradient overwrites them, which saves filling and adding. Empty if none does.
    stale: Vec<bool>,
}

/// One parameter of a unit.
#[derive(Debug, Clone)]
pub struct UnitEntry {
    /// The parameter's name.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// Its elements' range in the unit.
    pub range: Range<usize>,
    /// The elements of the parameter that these are: all of them, but in a shard.
    pub part: Range<usize>,
    pub(super) init: Init,
}

/// What the parameters of a unit have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnitKind {
    pub(super) block: String,
    pub(super) trainable: bool,
    pub(super) decay: bool,
}

impl Unit {
    pub(super) fn new(
        index: usize,
        kind: UnitKind,
        dtype: DType,
        device: Device,
        entries: Vec<UnitEntry>,
    ) -> Self {
        let len = entries.last().map_or(0, |entry| entry.range.end);
        let UnitKind { block, trainable, decay } = kind;
        let memory = RwLock::default();
        Self(Arc::new(Inner { index, block, trainable, decay, dtype, device, len, entries, memory }))
    }

    /// Whether both handles are of the same unit.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The position among the store's units, in forward order.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// The block whose parameters these are; empty for parameters outside any block.
    pub fn block(&self) -> &str {
        &self.0.block
    }

    /// Whether gradients are computed for it.
    pub fn trainable(&self) -> bool {
        self.0.trainable
    }

    /// Whether weight decay applies to it.
    pub fn decay(&self) -> bool {
        self.0.decay
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// How many bytes its values take.
    pub fn bytes(&self) -> usize {
        storage::bytes_of(self.0.len, self.0.dtype)
    }

    /// Its parameters in order.
    pub fn entries(&self) -> &[UnitEntry] {
        &self.0.entries
    }

    /// A unit of its own for elements `range` of this one: its entries are the parts of parameters that lie there, flat,
    /// and it has memory of its own, empty at first. Whoever holds a shard gives it to optimizers and averages in place of
    /// the whole.
    #[must_use]
    pub fn shard(&self, range: Range<usize>) -> Self {
        let start = range.start;
        let of_shard = |(entry, part): (&UnitEntry, Range<usize>)| {
            let at = entry.range.start + part.start - start;
            UnitEntry {
                name: entry.name.clone(),
                shape: Shape::from(part.len()),
                range: at..at + part.len(),
                part,
                init: entry.init,
            }
        };
        let (len, entries) = (range.len(), self.entries_in(range).map(of_shard).collect());
        let Inner { index, block, trainable, decay, dtype, device, .. } = &*self.0;
        Self(Arc::new(Inner {
            index: *index,
            block: block.clone(),
            trainable: *trainable,
            decay: *decay,
            dtype: *dtype,
            device: device.clone(),
            len,
            entries,
            memory: RwLock::default(),
        }))
    }

    /// The parameters that `range` of the unit touches: each with the part of the *parameter's* elements.
    pub fn entries_in(&self, range: Range<usize>) -> impl Iterator<Item = (&UnitEntry, Range<usize>)> {
        self.0.entries.iter().filter_map(move |entry| {
            let start = entry.range.start.max(range.start);
            let end = entry.range.end.min(range.end);
            (start < end).then(|| (entry, start - entry.range.start..end - entry.range.start))
        })
    }

    /// The flat values, if they are in memory.
    pub fn values(&self) -> Option<Tensor> {
        self.0.memory.read().unwrap_or_else(PoisonError::into_inner).values.clone()
    }

    /// Puts flat values in place, or releases them with `None`.
    ///
    /// # Errors
    /// If the number of elements or their type is not the unit's.
    pub fn set_values(&self, values: Option<Tensor>) -> Result<()> {
        self.check(values.as_ref())?;
        self.0.memory.write().unwrap_or_else(PoisonError::into_inner).values = values;
        Ok(())
    }

    /// The flat gradients, if allocated.
    ///
    /// # Errors
    /// If the buffer cannot be written.
    pub fn grads(&self) -> Result<Option<Tensor>> {
        let mut memory = self.0.memory.write().unwrap_or_else(PoisonError::into_inner);
        self.settle(&mut memory)?;
        Ok(memory.grads.clone())
    }

    /// Puts flat gradients in place, or releases them with `None`.
    ///
    /// # Errors
    /// If the number of elements or their type is not the unit's.
    pub fn set_grads(&self, grads: Option<Tensor>) -> Result<()> {
        self.check(grads.as_ref())?;
        let mut memory = self.0.memory.write().unwrap_or_else(PoisonError::into_inner);
        memory.grads = grads;
        memory.stale.clear();
        Ok(())
    }

    /// Whether gradients are allocated.
    pub fn has_grads(&self) -> bool {
        self.0.memory.read().unwrap_or_else(PoisonError::into_inner).grads.is_some()
    }

    /// Makes the gradients zero, keeping their memory. Nothing is written yet: what comes first overwrites.
    pub fn zero_grads(&self) {
        let mut memory = self.0.memory.write().unwrap_or_else(PoisonError::into_inner);
        if memory.grads.is_some() {
            memory.stale.clear();
            memory.stale.resize(self.0.entries.len(), true);
        }
    }

    /// The flat gradients, allocated as zeros if they were not.
    ///
    /// # Errors
    /// If the allocation fails.
    pub fn grads_or_zeros(&self) -> Result<Tensor> {
        let mut memory = self.0.memory.write().unwrap_or_else(PoisonError::into_inner);
        let grads = self.allocate(&mut memory)?;
        self.settle(&mut memory)?;
        Ok(grads)
    }

    /// Where the gradient of the parameter at `range` is to be written, flat, and whether it is to be added to what is
    /// there; otherwise all of it is to be overwritten.
    pub(super) fn destination(&self, range: Range<usize>) -> Result<(Tensor, bool)> {
        let mut memory = self.0.memory.write().unwrap_or_else(PoisonError::into_inner);
        let to = self.allocate(&mut memory)?.narrow(0, range.start, range.len())?;
        let at = self.0.entries.partition_point(|entry| entry.range.start < range.start);
        let stale = memory.stale.get_mut(at).is_some_and(std::mem::take);
        Ok((to, !stale))
    }

    fn allocate(&self, memory: &mut Memory) -> Result<Tensor> {
        if let Some(grads) = &memory.grads {
            return Ok(grads.clone());
        }
        let grads = if self.0.device.is_cpu() {
            // Not filled with zeros: the first gradients overwrite.
            memory.stale.clear();
            memory.stale.resize(self.0.entries.len(), true);
            crate::host::unwritten_flat(self.0.len, self.0.dtype)?
        } else {
            Tensor::zeros(self.0.len, self.0.dtype, &self.0.device)?
        };
        memory.grads = Some(grads.clone());
        Ok(grads)
    }

    /// Writes the zeros that are still owed.
    fn settle(&self, memory: &mut Memory) -> Result<()> {
        let Some(grads) = &memory.grads else { return Ok(()) };
        for (entry, stale) in self.0.entries.iter().zip(&mut memory.stale) {
            if std::mem::take(stale) {
                storage::zero_in_place(&grads.narrow(0, entry.range.start, entry.range.len())?)?;
            }
        }
        memory.stale.clear();
        Ok(())
    }

    /// The initial values of elements `range`, computed from nothing but the key and the parameters' names.
    ///
    /// # Errors
    /// If the allocation fails.
    pub fn initial_values(&self, key: Key, range: Range<usize>) -> Result<Tensor> {
        const CHUNK: usize = 1 << 16;
        let mut scratch = vec![0.0_f64; CHUNK.min(range.len())];
        let mut narrow = Vec::new();
        let mut wide = Vec::new();
        let single = self.0.dtype == DType::F32;
        if single {
            narrow.reserve_exact(range.len());
        } else {
            wide.reserve_exact(range.len());
        }
        for (entry, part) in self.entries_in(range) {
            let key = key.stream(&entry.name);
            for start in part.clone().step_by(CHUNK) {
                let chunk = start..(start + CHUNK).min(part.end);
                let out = &mut scratch[..chunk.len()];
                entry.init.fill(entry.shape.dims(), key, chunk, out);
                if single {
                    narrow.extend(out.iter().map(|v| *v as f32));
                } else {
                    wide.extend_from_slice(out);
                }
            }
        }
        if single {
            let len = narrow.len();
            return Ok(Tensor::from_vec(narrow, len, &self.0.device)?);
        }
        let len = wide.len();
        Ok(Tensor::from_vec(wide, len, &self.0.device)?.to_dtype(self.0.dtype)?)
    }

    fn check(&self, flat: Option<&Tensor>) -> Result<()> {
        let Some(flat) = flat else { return Ok(()) };
        if flat.dims() != [self.0.len] {
            return Err(crate::TensorError::unequal("unit memory", &Shape::from(self.0.len), flat.shape()));
        }
        if flat.dtype() != self.0.dtype {
            return Err(crate::TensorError::dtype("unit memory", flat.dtype()));
        }
        Ok(())
    }
}
