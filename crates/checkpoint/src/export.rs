//! Exports a checkpoint to one safetensors file with the reference names.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

use phalanx_tensor::AdaptedLayer;
use phalanx_tensor::io::{TensorHeader, atomic_write, sort_for_safetensors, write_elements, write_header};

use super::piece::{EMA, MODEL};
use super::region::Region;
use super::{Checkpoint, CheckpointError, Reader};

/// The numbers of exported tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportCount {
    /// Tensors in the file.
    pub tensors: usize,
    /// The number of tensors that are averages.
    pub averaged: usize,
}

/// Returns the name in an exported file of a name in a checkpoint; `None` to leave it out.
pub type Renaming<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The choices of an export.
#[derive(Clone, Copy, Default)]
pub struct ExportOptions<'a> {
    /// True to write averages in place of the parameters that have one.
    pub averages: bool,
    /// Entries that are added to the file's header.
    pub metadata: &'a [(&'a str, String)],
    /// Layers whose adapters are added to their weights, W + (α/r)·B·A. Their A and B are left out.
    pub merged: &'a [AdaptedLayer],
    /// The names in the file. Without it, all parameters and buffers are written under their names.
    pub names: Option<&'a Renaming<'a>>,
}

impl std::fmt::Debug for ExportOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExportOptions")
            .field("averages", &self.averages)
            .field("metadata", &self.metadata)
            .field("merged", &self.merged)
            .finish_non_exhaustive()
    }
}

/// A tensor of an export.
struct Exported<'a> {
    /// Its name in the checkpoint.
    source: String,
    /// Its name in the file.
    header: TensorHeader,
    /// The adapter that is added to it.
    adapter: Option<&'a AdaptedLayer>,
}

/// Reads the tensors of an export.
struct Source<'a> {
    reader: &'a Reader,
    averages: bool,
}

impl Source<'_> {
    /// The kind of tensor that is written for a name.
    fn kind(&self, name: &str) -> &'static str {
        match self.averages && !self.reader.pieces(EMA, name).is_empty() {
            true => EMA,
            false => MODEL,
        }
    }

    /// True if a tensor, or the adapter that is added to it, is an average.
    fn is_averaged(&self, exported: &Exported<'_>) -> bool {
        let adapter = exported.adapter.map(AdaptedLayer::a);
        [Some(exported.source.clone()), adapter].into_iter().flatten().any(|name| self.kind(&name) == EMA)
    }

    /// Writes the elements of a tensor.
    fn write(
        &self,
        exported: &Exported<'_>,
        file: &mut dyn Write,
    ) -> Result<io::Result<()>, CheckpointError> {
        if let Some(layer) = exported.adapter {
            let read = |name: &str| self.reader.read(self.kind(name), name);
            let [weight, a, b] = [read(&exported.source)?, read(&layer.a())?, read(&layer.b())?];
            let merged = layer.merged(&weight, &a, &b).map_err(|error| {
                CheckpointError::damaged(
                    Path::new(&exported.source),
                    format!("its adapter does not fit: {error}"),
                )
            })?;
            return Ok(write_elements(file, &merged));
        }
        let mut written = Ok(());
        let region = Region::whole(&exported.header.shape);
        self.reader.read_bytes(self.kind(&exported.source), &exported.source, &region, |_, bytes| {
            // Write errors are distinguished from read errors.
            if written.is_ok() {
                written = file.write_all(bytes);
            }
            Ok(())
        })?;
        Ok(written)
    }
}

impl Checkpoint {
    /// Writes parameters and buffers into one safetensors file, in the element types in which they were saved. No more than a mebibyte
    /// is in memory at once, or one weight whose adapter is added to it. A file that was there is replaced when the new one is complete.
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] if averages are asked for and there are none, [`CheckpointError::Damaged`] if the checkpoint
    /// is, and [`CheckpointError::Io`] if `out` cannot be written.
    pub fn export(&self, out: &Path, options: &ExportOptions<'_>) -> Result<ExportCount, CheckpointError> {
        let reader = self.reader();
        if options.averages && reader.tensors(EMA).next().is_none() {
            let problem = "it holds no averages (train.ema was 0)".to_owned();
            return Err(CheckpointError::Unfit { path: self.folder.clone(), problem });
        }
        let source = Source { reader: &reader, averages: options.averages };
        let mut tensors = self.exported(&source, options)?;
        sort_for_safetensors(&mut tensors, |tensor| (&tensor.header.name, tensor.header.dtype));
        let mut damage = None;
        let written = atomic_write(out, |file| {
            // The metadata that readers of PyTorch's ecosystem look for.
            let format = ("format", "pt".to_owned());
            let entries: Vec<_> = [&format].into_iter().chain(options.metadata).cloned().collect();
            let headers: Vec<TensorHeader> = tensors.iter().map(|tensor| tensor.header.clone()).collect();
            write_header(file, &headers, &entries)?;
            for tensor in &tensors {
                match source.write(tensor, file) {
                    Ok(written) => written?,
                    Err(error) => {
                        damage = Some(error);
                        return Err(io::Error::other("the checkpoint cannot be read"));
                    }
                }
            }
            Ok(())
        });
        match (damage, written) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => {
                let averaged = tensors.iter().filter(|tensor| source.is_averaged(tensor)).count();
                Ok(ExportCount { tensors: tensors.len(), averaged })
            }
            (None, Err(error)) => {
                Err(CheckpointError::io(self.step(), "export to", out)(io::Error::other(error)))
            }
        }
    }

    /// Lists the parameters and buffers that are written, each with the element type of its kind.
    fn exported<'a>(
        &self,
        source: &Source<'_>,
        options: &ExportOptions<'a>,
    ) -> Result<Vec<Exported<'a>>, CheckpointError> {
        let adapters: BTreeSet<String> =
            options.merged.iter().flat_map(|layer| [layer.a(), layer.b()]).collect();
        let weights: BTreeMap<String, &AdaptedLayer> =
            options.merged.iter().map(|layer| (layer.weight(), layer)).collect();
        let mut all = Vec::new();
        for (name, shape) in source.reader.tensors(MODEL).filter(|(name, _)| !adapters.contains(*name)) {
            let named = options.names.map_or_else(|| Some(name.to_owned()), |names| names(name));
            let Some(named) = named else { continue };
            let unknown = || {
                let index = self.folder.join(super::index::INDEX);
                CheckpointError::damaged(&index, format!("names no known element type for `{name}`"))
            };
            let dtype = source.reader.dtype(source.kind(name), name).ok_or_else(unknown)?;
            let header = TensorHeader { name: named, dtype, shape: shape.to_vec() };
            all.push(Exported { source: name.to_owned(), header, adapter: weights.get(name).copied() });
        }
        Ok(all)
    }
}
