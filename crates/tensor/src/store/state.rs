//! The state dict: saving and loading of all parameters and buffers by name.

use candle_core::Tensor;

use super::{Entry, ParamStore};
use crate::{Result, TensorError};

/// Names without a counterpart after loading a state dict.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LoadReport {
    /// Names of the model that the file lacks; they keep their values.
    pub missing: Vec<String>,
    /// Names of the file that the model lacks.
    pub unexpected: Vec<String>,
}

impl ParamStore {
    /// Copies all parameters and buffers with their current values, in registration order.
    ///
    /// # Errors
    /// If a parameter's values are not in memory.
    pub fn state_dict(&self) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::with_capacity(self.params.len() + self.buffers.len());
        for param in &self.params {
            all.push((param.name().to_owned(), param.to_host()?));
        }
        for buffer in &self.buffers {
            all.push((buffer.name().to_owned(), buffer.to_host()?.copy()?));
        }
        Ok(all)
    }

    /// True if only other stages of a pipeline hold the parameter or buffer.
    pub(crate) fn is_elsewhere(&self, name: &str) -> bool {
        self.elsewhere.names.contains(name)
    }

    /// Loads values of whole parameters by name, converting element types. Of a parameter that is cut over ranks the portion is taken.
    ///
    /// Writes nothing unless every shape fits. Names without a counterpart are reported and not an error.
    ///
    /// # Errors
    /// [`TensorError::Shape`] naming the first tensor of a wrong shape.
    pub fn load_state_dict<'a>(
        &self,
        tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    ) -> Result<LoadReport> {
        let mut report = LoadReport::default();
        let mut found: Vec<(Entry, &Tensor)> = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for (name, tensor) in tensors {
            let Some(entry) = self.by_name.get(name) else {
                if self.is_elsewhere(name) {
                    continue;
                }
                report.unexpected.push(name.to_owned());
                continue;
            };
            let expected = match entry {
                Entry::Param(index) => self.params[*index].whole_shape().clone(),
                Entry::Buffer(index) => self.buffers[*index].whole_shape(),
            };
            if *tensor.shape() != expected {
                let problem = format!("`{name}` has shape {:?}; the model's is {expected:?}", tensor.shape());
                return Err(TensorError::shape("load state dict", problem));
            }
            seen.insert(name);
            found.push((*entry, tensor));
        }
        let names =
            self.params.iter().map(super::Param::name).chain(self.buffers.iter().map(super::Buffer::name));
        report.missing = names.filter(|name| !seen.contains(name)).map(str::to_owned).collect();
        for (entry, tensor) in found {
            match entry {
                Entry::Param(index) => self.params[index].set(tensor)?,
                Entry::Buffer(index) => self.buffers[index].set(tensor)?,
            }
        }
        Ok(report)
    }
}
