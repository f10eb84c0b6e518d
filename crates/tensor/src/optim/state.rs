//! Flat state beside units: one tensor a unit, addressed by parameter name when saved.

use std::collections::BTreeMap;

use candle_core::Tensor;

use crate::store::Unit;
use crate::{Result, TensorError, storage};

/// One kind of state (a momentum, an average): a flat tensor for every unit that has one.
#[derive(Debug)]
pub struct FlatState {
    kind: &'static str,
    flat: BTreeMap<usize, Tensor>,
}

impl FlatState {
    /// An empty state of a kind, whose name starts those of its tensors: `exp_avg.conv1.weight`.
    pub fn new(kind: &'static str) -> Self {
        Self { kind, flat: BTreeMap::new() }
    }

    /// The flat tensor of a unit, zeros at first.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn of(&mut self, unit: &Unit) -> Result<Tensor> {
        if let Some(flat) = self.flat.get(&unit.index()) {
            return Ok(flat.clone());
        }
        let flat = Tensor::zeros(unit.len(), unit.dtype(), unit.device())?;
        self.flat.insert(unit.index(), flat.clone());
        Ok(flat)
    }

    /// Makes the flat tensors of all trainable units.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn reserve(&mut self, units: &[Unit]) -> Result<()> {
        units.iter().filter(|unit| unit.trainable()).try_for_each(|unit| self.of(unit).map(drop))
    }

    /// The flat tensor of a unit, if there is one.
    pub fn get(&self, unit: &Unit) -> Option<&Tensor> {
        self.flat.get(&unit.index())
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.flat.values().map(|flat| storage::bytes_of(flat.elem_count(), flat.dtype())).sum()
    }

    /// Copies of all tensors by name, with the parameters' shapes.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn named(&self, units: &[Unit]) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::new();
        for unit in units {
            let Some(flat) = self.get(unit) else { continue };
            for entry in unit.entries() {
                let part = flat.narrow(0, entry.range.start, entry.range.len())?.force_contiguous()?;
                all.push((format!("{}.{}", self.kind, entry.name), part.reshape(&entry.shape)?));
            }
        }
        Ok(all)
    }

    /// Takes over those of `tensors` that are of this kind.
    ///
    /// # Errors
    /// If a tensor's shape is not its parameter's.
    pub fn load(&mut self, units: &[Unit], tensors: &[(String, Tensor)]) -> Result<()> {
        let by_name: BTreeMap<&str, &Tensor> = tensors
            .iter()
            .filter_map(|(name, tensor)| Some((name.strip_prefix(self.kind)?.strip_prefix('.')?, tensor)))
            .collect();
        for unit in units {
            for entry in unit.entries() {
                let Some(tensor) = by_name.get(entry.name.as_str()) else { continue };
                if *tensor.shape() != entry.shape {
                    return Err(TensorError::unequal("load optimizer state", &entry.shape, tensor.shape()));
                }
                let part = self.of(unit)?.narrow(0, entry.range.start, entry.range.len())?;
                storage::copy_in_place(&part, tensor)?;
            }
        }
        Ok(())
    }
}
