//! Loads a network from the checkpoint of another run.

use std::path::Path;

use phalanx_tensor::{AdaptedLayer, ParamStore};

use crate::error::WeightError;
use phalanx_checkpoint::{EMA, MODEL, newest_checkpoint};
use phalanx_run::RunFolder;

/// Loads the newest checkpoint of a run into the parameters and buffers of the network `name`; averages if there are any. In the
/// checkpoint, names begin with one of `prefixes` in place of the network's name.
///
/// # Errors
/// If the run has no checkpoint, or none of this network.
pub fn load_of_run(name: &str, run: &Path, prefixes: &[&str], store: &ParamStore) -> Result<(), WeightError> {
    let problem =
        |problem: String| WeightError::OfRun { network: name.to_owned(), run: run.to_owned(), problem };
    let folder = RunFolder::open(run).map_err(|error| problem(error.to_string()))?;
    let checkpoint = newest_checkpoint(&folder)?;
    let reader = checkpoint.reader();
    let named = |own: &str| -> Result<String, WeightError> {
        let bare = own.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')).unwrap_or(own);
        let mut names = prefixes.iter().map(|prefix| format!("{prefix}{bare}"));
        let found = names.clone().find(|name| !reader.pieces(MODEL, name).is_empty());
        found.ok_or_else(|| {
            let looked = names.by_ref().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", nor ");
            problem(format!("its checkpoint of step {} has no {looked}", checkpoint.step()))
        })
    };
    let is_adapter = |there: &str| {
        AdaptedLayer::named_by(there).is_some() && prefixes.iter().any(|prefix| there.starts_with(prefix))
    };
    if let Some((adapter, _)) = reader.tensors(MODEL).find(|(there, _)| is_adapter(there)) {
        return Err(problem(format!(
            "it has the adapter `{adapter}`, without which its weights are another network's; train it without lora.rank"
        )));
    }
    for param in store.params() {
        let there = named(param.name())?;
        let kind = if reader.pieces(EMA, &there).is_empty() { MODEL } else { EMA };
        let value = reader.read(kind, &there)?;
        if value.dims() != param.whole_shape().dims() {
            let (found, own) = (value.dims(), param.whole_shape().dims());
            return Err(problem(format!("`{there}` has shape {found:?}, here it has {own:?}")));
        }
        param.set(&value)?;
    }
    for buffer in store.buffers() {
        buffer.set(&reader.read(MODEL, &named(buffer.name())?)?)?;
    }
    Ok(())
}
