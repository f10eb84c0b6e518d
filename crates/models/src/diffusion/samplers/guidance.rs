//! Classifier-free guidance (Ho & Salimans 2022).

use candle_core::DType;
use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use super::combine;
use crate::diffusion::schedule::per_sample;

/// The strength of classifier-free guidance, from the prediction without a text to the prediction with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guidance {
    /// s in u + s·(c − u): 1 uses the prediction with the text, and more exaggerates the effect of the text.
    pub scale: f64,
    /// φ: the fraction of the result that is rescaled to the standard deviation of c, for each sample (Lin et al.
    /// 2024); 0 for none.
    pub rescale: f64,
}

impl Guidance {
    /// Returns true if the prediction without a text is needed.
    pub fn needs_both(self) -> bool {
        self.scale != 1.0
    }

    /// Combines the predictions without and with a text.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn apply(self, tape: &Tape, without: &Value, with: &Value) -> Result<Value> {
        let guided = combine(tape, &[(1.0 - self.scale, without), (self.scale, with)])?;
        if self.rescale == 0.0 {
            return Ok(guided);
        }
        let factors: Vec<f64> = deviations(with)?
            .into_iter()
            .zip(deviations(&guided)?)
            // A constant has nothing to rescale.
            .map(|(with, guided)| if guided > 0.0 { with / guided } else { 1.0 })
            .map(|ratio| self.rescale * ratio + 1.0 - self.rescale)
            .collect();
        ops::broadcast_mul(tape, &guided, &per_sample(tape, &factors, &guided)?)
    }
}

/// Returns the unbiased standard deviation of each sample's elements.
fn deviations(values: &Value) -> Result<Vec<f64>> {
    let samples = values.dims().first().copied().unwrap_or(0);
    let rows = values.to_host()?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    let len = rows.len() / samples.max(1);
    if len < 2 {
        let problem = format!("{:?} has too few elements for a deviation", values.shape());
        return Err(TensorError::Shape { op: "guidance", problem });
    }
    let deviation = |row: &[f64]| {
        let mean = row.iter().sum::<f64>() / len as f64;
        (row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (len - 1) as f64).sqrt()
    };
    Ok(rows.chunks_exact(len).map(deviation).collect())
}
