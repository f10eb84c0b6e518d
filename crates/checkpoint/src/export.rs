//! Exports a checkpoint to one safetensors file with the reference names.

use std::io;
use std::path::Path;

use phalanx_tensor::io::{TensorHeader, atomic_write, sort_for_safetensors, write_header};

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

impl Checkpoint {
    /// Writes all parameters and buffers into one safetensors file under the names of the reference state dict, in the element
    /// types in which they were saved; with `averages` the averaged parameters in place of those that have an average. No more
    /// than a mebibyte is in memory at once. A file that was there is replaced when the new one is complete. `metadata` is added to
    /// the file's header.
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] if averages are asked for and there are none, [`CheckpointError::Damaged`] if the checkpoint
    /// is, and [`CheckpointError::Io`] if `out` cannot be written.
    pub fn export(
        &self,
        out: &Path,
        averages: bool,
        metadata: &[(&str, String)],
    ) -> Result<ExportCount, CheckpointError> {
        let reader = self.reader();
        if averages && reader.tensors(EMA).next().is_none() {
            let problem = "it holds no averages (train.ema was 0)".to_owned();
            return Err(CheckpointError::Unfit { path: self.folder.clone(), problem });
        }
        let kind_of = |name: &str| match averages && !reader.pieces(EMA, name).is_empty() {
            true => EMA,
            false => MODEL,
        };
        let mut headers = self.headers(&reader, kind_of)?;
        sort_for_safetensors(&mut headers, |header| (&header.name, header.dtype));
        let mut damage = None;
        let written = atomic_write(out, |file| {
            // The metadata that readers of PyTorch's ecosystem look for.
            let format = ("format", "pt".to_owned());
            let entries: Vec<_> = [&format].into_iter().chain(metadata).cloned().collect();
            write_header(file, &headers, &entries)?;
            for header in &headers {
                let mut failed = None;
                let region = Region::whole(&header.shape);
                let read = reader.read_bytes(kind_of(&header.name), &header.name, &region, |_, bytes| {
                    // Write errors are distinguished from read errors.
                    if failed.is_none() {
                        failed = file.write_all(bytes).err();
                    }
                    Ok(())
                });
                if let Err(error) = read {
                    damage = Some(error);
                    return Err(io::Error::other("the checkpoint cannot be read"));
                }
                if let Some(error) = failed {
                    return Err(error);
                }
            }
            Ok(())
        });
        match (damage, written) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => {
                let averaged = headers.iter().filter(|header| kind_of(&header.name) == EMA).count();
                Ok(ExportCount { tensors: headers.len(), averaged })
            }
            (None, Err(error)) => {
                Err(CheckpointError::io(self.step(), "export to", out)(io::Error::other(error)))
            }
        }
    }

    /// Lists the parameters and buffers, each with the element type of its kind.
    fn headers(
        &self,
        reader: &Reader,
        kind_of: impl Fn(&str) -> &'static str,
    ) -> Result<Vec<TensorHeader>, CheckpointError> {
        let header = |(name, shape): (&str, &[usize])| {
            let unknown = || {
                let index = self.folder.join(super::index::INDEX);
                CheckpointError::damaged(&index, format!("names no known element type for `{name}`"))
            };
            let dtype = reader.dtype(kind_of(name), name).ok_or_else(unknown)?;
            Ok(TensorHeader { name: name.to_owned(), dtype, shape: shape.to_vec() })
        };
        reader.tensors(MODEL).map(header).collect()
    }
}
