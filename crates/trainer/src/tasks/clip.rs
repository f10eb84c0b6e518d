//! Contrastive: a text encoder and an image tower from scratch.

use candle_core::DType;
use phalanx_models::{Clip, ImageTowerConfig};
use phalanx_tensor::Value;

use super::text::{TextSettings, Texts};
use crate::engine::{Setup, Step, TaskSpec, TrainError, Training, number};

/// CLIP with small towers.
///
/// Each rank contrasts its own part of the batch: features are not gathered over ranks, so a rank's pictures are
/// told apart from `global_batch / ranks` texts, not from all.
pub(super) struct Contrastive {
    model: Clip,
    texts: Texts,
}

crate::settings! {
    /// The settings of CLIP.
    pub(super) struct ClipSettings {
        /// Channels after each halving of the image, from the image inwards.
        widths: Vec<usize> = vec![32, 64, 128];
        flatten text: TextSettings;
    }
}

/// CLIP from scratch.
pub(super) fn spec() -> TaskSpec<ClipSettings> {
    TaskSpec::new("clip", "Contrastive: a text encoder and an image tower", contrastive)
        .validate(|settings: &ClipSettings, _, relations| settings.text.check(relations))
}

fn contrastive(setup: &mut Setup<'_>, settings: &ClipSettings) -> Result<Training<Contrastive>, TrainError> {
    let texts = Texts::new(&settings.text)?;
    let text = texts.encoder().clone();
    let image = ImageTowerConfig { widths: settings.widths.clone() };
    let name = format!(
        "CLIP with a text encoder of {} x {} and an image tower of {:?}",
        text.layers, text.width, settings.widths
    );
    let model = texts.register(setup, "", |scope| Clip::new(scope, &text, &image))?;
    Ok(Training::new(name, Contrastive { model, texts })
        .loss(Contrastive::loss)
        .evaluate(["loss", "accuracy"], Contrastive::evaluate))
}

impl Contrastive {
    fn loss(&self, step: &Step<'_>) -> Result<Value, TrainError> {
        let ids = self.texts.encode(step.texts("captions")?)?;
        Ok(self.model.loss(step.tape, &step.value("images")?, &ids, step.over()?)?)
    }

    fn evaluate(&self, step: &Step<'_>) -> Result<[f64; 2], TrainError> {
        Ok([number(&self.loss(step)?)?, self.count_matched(step)?])
    }

    /// The weights of the pictures that are nearest to their own text among the batch's. Texts that are equal count as one.
    fn count_matched(&self, step: &Step<'_>) -> Result<f64, TrainError> {
        let captions = step.texts("captions")?;
        let ids = self.texts.encode(captions)?;
        let out = self.model.forward(step.tape, &step.value("images")?, &ids)?;
        let (image, text) =
            (out.image.tensor()?.to_dtype(DType::F32)?, out.text.tensor()?.to_dtype(DType::F32)?);
        let similarity = image.matmul(&text.t()?)?;
        let best = similarity.argmax(1)?.to_vec1::<u32>()?;
        let rows = best.iter().zip(captions).zip(step.batch.weights());
        let matched = rows.filter(|((best, own), _)| captions[**best as usize] == **own);
        Ok(matched.map(|(_, weight)| f64::from(*weight)).sum())
    }
}
