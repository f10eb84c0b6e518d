//! Weights for use: of a checkpoint, and of files that an export has written.

use std::path::Path;

use phalanx_checkpoint::{Checkpoint, EMA};
use phalanx_tensor::io::load_into;
use phalanx_tensor::{LoadReport, ParamStore};

use crate::error::WeightError;

/// Loads the weights of a checkpoint into the stores of all networks; with `averages` those in place of the parameters that have one.
///
/// # Errors
/// If it is of another model, or cannot be read.
pub fn load_checkpoint(
    stores: &[&ParamStore],
    checkpoint: &Checkpoint,
    averages: bool,
) -> Result<(), WeightError> {
    let reader = checkpoint.reader();
    reader.check_model(stores.iter().copied())?;
    for store in stores {
        reader.read_model(store)?;
        for param in store.buckets().iter().filter(|_| averages) {
            reader.read_values(EMA, param)?;
        }
    }
    Ok(())
}

/// Loads an exported file, which has the parameters and buffers of all networks.
///
/// # Errors
/// If it cannot be read, or has not all of them and nothing else.
pub fn load_exported(stores: &[&ParamStore], file: &Path) -> Result<(), WeightError> {
    if let [store] = stores {
        load_into(store, file, true)?;
        return Ok(());
    }
    let unfit = |problem: String| WeightError::File { path: file.to_owned(), problem };
    for store in stores {
        let LoadReport { missing, unexpected } = load_into(store, file, false)?;
        if let Some(name) = missing.iter().find(|name| !name.ends_with("num_batches_tracked")) {
            return Err(unfit(format!("it lacks `{name}`")));
        }
        let is_known = |name: &&String| stores.iter().any(|store| store.names().any(|own| own == *name));
        if let Some(name) = unexpected.iter().find(|name| !is_known(name)) {
            return Err(unfit(format!("it has `{name}`, which the model has not")));
        }
    }
    Ok(())
}
