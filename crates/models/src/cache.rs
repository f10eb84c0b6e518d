//! Keys and values of the tokens that a model has seen.

use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

/// The keys and values of a text, layer by layer, so that a model that continues the text computes only the new tokens.
#[derive(Debug, Clone)]
pub struct KeyValueCache {
    layers: Vec<LayerCache>,
    length: usize,
}

/// The keys and values of one layer, [N, T, key heads, D].
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerCache {
    entry: Option<[Value; 2]>,
}

impl KeyValueCache {
    /// Makes the empty cache of a model of this number of layers.
    pub(crate) fn new(layers: usize) -> Self {
        Self { layers: vec![LayerCache::default(); layers], length: 0 }
    }

    /// The number of tokens in a row.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Replaces the rows by those at `rows`, which may repeat.
    ///
    /// # Errors
    /// If a row is out of range.
    pub fn select_rows(&mut self, tape: &Tape, rows: &[usize]) -> Result<()> {
        for layer in &mut self.layers {
            let Some(entry) = &layer.entry else { continue };
            let select = |value: &Value| {
                let parts: Vec<Value> =
                    rows.iter().map(|&row| ops::narrow(tape, value, 0, row, 1)).collect::<Result<_>>()?;
                ops::cat(tape, &parts.iter().collect::<Vec<_>>(), 0)
            };
            layer.entry = Some([select(&entry[0])?, select(&entry[1])?]);
        }
        Ok(())
    }

    /// Returns the caches of the layers, for `tokens` more tokens.
    pub(crate) fn grow(&mut self, tokens: usize) -> &mut [LayerCache] {
        self.length += tokens;
        &mut self.layers
    }
}

impl LayerCache {
    /// Adds the keys and values of new tokens. Returns all.
    pub(crate) fn extend(&mut self, tape: &Tape, keys: &Value, values: &Value) -> Result<[Value; 2]> {
        let all = match &self.entry {
            None => [keys.clone(), values.clone()],
            Some([before, values_before]) => {
                if before.dims().first() != keys.dims().first() {
                    let problem = format!("{:?} rows after {:?}", keys.dims().first(), before.dims().first());
                    return Err(TensorError::Shape { op: "cache", problem });
                }
                [ops::cat(tape, &[before, keys], 1)?, ops::cat(tape, &[values_before, values], 1)?]
            }
        };
        self.entry = Some(all.clone());
        Ok(all)
    }
}
