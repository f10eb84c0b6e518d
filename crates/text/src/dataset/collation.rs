//! Batches of windows.

use phalanx_data::collate::{Collate, Samples};
use phalanx_data::{Batch, Result};

use super::TokenWindow;

/// A collation of [`TokenWindow`]s, padded to the context.
///
/// The batch has `tokens` and `targets`, u32 [N, T], and `mask`, f32 [N, T], the weights of the predictions. If documents are
/// apart it also has `starts`, the column at which the document of each token begins, and `positions` within documents, both
/// u32 [N, T].
#[derive(Debug, Clone, Copy)]
pub struct WindowCollation {
    context: usize,
}

impl WindowCollation {
    /// Makes the collation of windows of up to `context` predictions.
    #[must_use]
    pub fn new(context: usize) -> Self {
        Self { context }
    }
}

impl Collate<TokenWindow> for WindowCollation {
    fn collate(&self, samples: &mut Samples<'_, TokenWindow>) -> Result<Batch> {
        let (rows, length) = (samples.len(), self.context);
        let mut tokens = vec![0; rows * length];
        let mut targets = vec![0; rows * length];
        let mut mask = vec![0.0_f32; rows * length];
        let mut starts = Vec::new();
        for row in 0..rows {
            let Some(sample) = samples.next() else { break };
            let (index, window) = sample?;
            let used = window.tokens.len().saturating_sub(1);
            if used == 0 || used > length {
                return Err(samples.error(index, format!("{used} predictions; expected 1 to {length}")));
            }
            let place = row * length..row * length + used;
            tokens[place.clone()].copy_from_slice(&window.tokens[..used]);
            targets[place.clone()].copy_from_slice(&window.tokens[1..]);
            mask[place].copy_from_slice(&window.weights());
            if !window.starts.is_empty() {
                starts.resize(row * length, 0);
                starts.extend_from_slice(&window.starts[..used]);
            }
        }
        let mut batch = Batch::new(rows)
            .with("tokens", [rows, length], tokens)?
            .with("targets", [rows, length], targets)?
            .with("mask", [rows, length], mask)?;
        if !starts.is_empty() {
            starts.resize(rows * length, 0);
            let columns = (0..rows).flat_map(|_| 0..length as u32);
            let positions: Vec<u32> = columns.zip(&starts).map(|(column, start)| column - start).collect();
            batch =
                batch.with("positions", [rows, length], positions)?.with("starts", [rows, length], starts)?;
        }
        Ok(batch)
    }
}
