//! State beside the parameters, by name: what each rank holds of it, and all of it.

use std::collections::BTreeMap;

use candle_core::Tensor;
use phalanx_tensor::host::copy_host;

use super::DataParallel;
use crate::Result;
use crate::buffer::TensorBuffer;

impl DataParallel {
    /// Bytes of parameters and of gradients that this rank holds now.
    pub fn bytes(&self) -> [u64; 2] {
        let (mut parameters, mut gradients) = (0, 0);
        for place in &self.places {
            let (whole, own) = (place.whole.bytes() as u64, place.own.bytes() as u64);
            parameters += if place.whole.values().is_some() { whole } else { 0 };
            // A part that is not released is a view of the whole.
            parameters += if place.released && place.own.values().is_some() { own } else { 0 };
            match (place.whole.has_grads(), place.own.has_grads()) {
                (true, _) => gradients += whole,
                (false, true) => gradients += own,
                (false, false) => {}
            }
        }
        [parameters, gradients]
    }

    /// All of a state of which `named` is this rank's part, as `{kind}.{parameter}` with the parameters' shapes: what
    /// [`phalanx_tensor::optim::Optimizer::state`] gives for [`DataParallel::units`]. Every rank calls this at the same
    /// place; with `wanted` false a rank takes part and gets nothing.
    ///
    /// # Errors
    /// Those of communication.
    pub fn whole_state(&self, named: Vec<(String, Tensor)>, wanted: bool) -> Result<Vec<(String, Tensor)>> {
        if !self.is_sharded() {
            return Ok(if wanted { named } else { Vec::new() });
        }
        let own: BTreeMap<&str, &Tensor> =
            named.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut kinds: Vec<String> = Vec::new();
        for name in own.keys() {
            let kind = name.split('.').next().unwrap_or_default();
            if kinds.iter().all(|known| known != kind) {
                kinds.push(kind.to_owned());
            }
        }
        // A rank whose parts are empty knows no kinds; the others tell it.
        for other in self.shards.all_gather_bytes(kinds.join(" ").as_bytes())? {
            for kind in String::from_utf8_lossy(&other).split_whitespace() {
                if kinds.iter().all(|known| known != kind) {
                    kinds.push(kind.to_owned());
                }
            }
        }
        kinds.sort();
        let mut all = Vec::new();
        for kind in &kinds {
            for place in self.places.iter().filter(|place| place.whole.trainable()) {
                let whole = Tensor::zeros(place.whole.len(), place.whole.dtype(), place.whole.device())?;
                for entry in place.own.entries() {
                    let Some(part) = own.get(format!("{kind}.{}", entry.name).as_str()) else { continue };
                    let to = whole.narrow(0, place.range.start + entry.range.start, entry.range.len())?;
                    copy_host(&to, part)?;
                }
                let TensorBuffer(whole) = self.shards.all_gather_chunks_async(TensorBuffer(whole)).wait()?;
                if wanted {
                    for entry in place.whole.entries() {
                        let tensor =
                            whole.narrow(0, entry.range.start, entry.range.len())?.force_contiguous()?;
                        all.push((format!("{kind}.{}", entry.name), tensor.reshape(&entry.shape)?));
                    }
                }
            }
        }
        Ok(all)
    }

    /// This rank's part of a state of all parameters, as [`DataParallel::whole_state`] gave it: what
    /// [`phalanx_tensor::optim::Optimizer::load_state`] takes for [`DataParallel::units`], whatever strategy and number of
    /// ranks it was saved with.
    ///
    /// # Errors
    /// If a tensor has fewer elements than its parameter.
    pub fn own_state(&self, named: Vec<(String, Tensor)>) -> Result<Vec<(String, Tensor)>> {
        if !self.is_sharded() {
            return Ok(named);
        }
        let entries: BTreeMap<_, _> = self
            .places
            .iter()
            .flat_map(|place| place.own.entries())
            .map(|entry| (entry.name.as_str(), &entry.part))
            .collect();
        let mut own = Vec::new();
        for (name, tensor) in named {
            let parameter = name.split_once('.').map_or("", |(_, parameter)| parameter);
            if let Some(part) = entries.get(parameter) {
                own.push((
                    name,
                    tensor.flatten_all()?.narrow(0, part.start, part.len())?.force_contiguous()?,
                ));
            }
        }
        Ok(own)
    }
}
