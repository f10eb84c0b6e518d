//! The use of captions by diffusion.

use candle_core::{DType, Tensor};
use phalanx_models::diffusion::TextAttention;
use phalanx_tensor::{Tape, Value};

use super::training::{Diffusion, Draws, Noised, own_draws};
use phalanx_trainer::engine::{
    CaptionFeatures, CaptionReader, CaptionWord, StepInput, TokenAttention, TrainError,
};

impl CaptionReader for Diffusion {
    fn features(&self, tape: &Tape, captions: &[String]) -> Result<Vec<CaptionFeatures>, TrainError> {
        let Some(told) = self.denoiser.read(tape, &self.texts, captions)? else { return Ok(Vec::new()) };
        let tokens = CaptionFeatures { name: "tokens".to_owned(), rows: told.tokens };
        let whole = CaptionFeatures { name: "whole caption".to_owned(), rows: told.pooled };
        Ok(if self.settings.pool_text { vec![tokens, whole] } else { vec![tokens] })
    }

    fn errors(
        &self,
        step: &StepInput<'_>,
        captions: &[String],
        level: f64,
    ) -> Result<Option<Vec<f64>>, TrainError> {
        let images = self.images(step)?;
        let predicted = self.predict(step.tape, &images, &at_level(step, &images, level)?, captions)?;
        let host = |value: &Value| -> Result<Tensor, TrainError> {
            Ok(value.to_host()?.to_dtype(DType::F64)?.flatten_from(1)?)
        };
        let error = (host(&predicted.predicted)? - host(&predicted.target)?)?;
        Ok(Some(error.sqr()?.mean(1)?.to_vec1()?))
    }

    fn attention(&self, step: &StepInput<'_>, level: f64) -> Result<Vec<TokenAttention>, TrainError> {
        let images = self.images(step)?;
        let Noised { samples, times, .. } =
            self.noised(step.tape, &images, &at_level(step, &images, level)?)?;
        let told = self.denoiser.read(step.tape, &self.texts, step.texts("captions")?)?;
        let attention = self.denoiser.text_attention(step.tape, &samples.sample, &times, told.as_ref())?;
        let of = |layer: TextAttention| TokenAttention { size: layer.size, shares: layer.shares };
        Ok(attention.into_iter().map(of).collect())
    }

    fn words(&self, caption: &str) -> Vec<CaptionWord> {
        self.texts.words(caption)
    }
}

/// Draws noise that is a function of each picture, at a level of noise from 0 to 1.
fn at_level(step: &StepInput<'_>, images: &Value, level: f64) -> Result<Draws, TrainError> {
    let draws = own_draws(step, images)?;
    Ok(Draws { timesteps: vec![level; draws.timesteps.len()], ..draws })
}
