//! The settings of StackGAN, and what they must fulfil.

use phalanx_data::transform::Normalise;
use phalanx_models::StackGanConfig;
use phalanx_models::stackgan::{AdversarialLoss, ConditioningActivation};

use crate::tasks::text::TextSettings;
use phalanx_config::{Config, Relations};

phalanx_config::settings! {
    /// The settings of StackGAN.
    pub(in crate::tasks) struct StackGanSettings {
        /// Which stage is trained: `1`; `2`, over the first one of `model.stage1`; or `both`, one after the other.
        stage: String = "both".to_owned();
        /// The folder of a run that has trained stage I, for `model.stage` = 2; its text encoder is taken over with it.
        stage1: String = String::new();
        /// The factor between the sizes of the images of stage II, which have `model.image_size`, and of stage I.
        upscale: usize = 4;
        /// The part of the run after which stage I is done and stage II begins, where both are trained.
        stage1_part: f64 = 0.5;
        /// The part of the run, at its beginning, in which the text encoder is trained, unless it comes from elsewhere.
        text_part: f64 = 0.1;
        /// The folder of a run of `clip`, `cvae` or `stackgan` whose text encoder is taken, and stays as it is; empty = none.
        text_run: String = String::new();
        /// Safetensors file with a vector for each caption, in place of a text encoder (see docs/stackgan.md); empty = none.
        text_embeddings: String = String::new();
        flatten gan: GanSettings;
        flatten text: TextSettings;
    }
}

phalanx_config::settings! {
    /// Sizes of the networks of both stages, and the settings of their training.
    pub(in crate::tasks) struct GanSettings {
        /// Numbers of a condition, which the conditioning augmentation draws for a text.
        condition: usize = 128;
        /// Activation of the layer that computes a condition's distribution: `glu` lets its noise vanish.
        conditioning: ConditioningActivation = ConditioningActivation::Relu;
        /// Numbers of the generator's noise.
        noise: usize = 100;
        /// Width of the generators: 8 times as many channels at 4x4 in stage I, 4 times as many in the middle of stage II.
        gf_dim: usize = 128;
        /// Width of the discriminators: channels after the first halving of the image.
        df_dim: usize = 64;
        /// Width of the generator of stage II; 0 = `model.gf_dim`.
        stage2_gf_dim: usize = 0;
        /// Width of the discriminator of stage II; 0 = `model.df_dim`.
        stage2_df_dim: usize = 0;
        /// Residual blocks in the middle of the generator of stage II.
        residual_blocks: usize = 4;
        /// Weight of the divergence of conditions from the standard normal distribution.
        kl_weight: f64 = 2.0;
        /// Weight of the contrastive loss of generated images and their captions in the generators' losses, by the image tower
        /// that was trained with the text encoder (as in AttnGAN); 0 = none.
        matching_weight: f64 = 0.0;
        /// Weight of the words of captions, read in images by the image tower, added to the contrastive loss: where the text encoder
        /// is trained, and in `model.matching_weight`; 0 = none.
        words_weight: f64 = 0.0;
        /// Loss of logits.
        adversarial: AdversarialLoss = AdversarialLoss::CrossEntropy;
        /// Batch norm uses the statistics of the global batch, so that any number of ranks trains as one does.
        sync_batch_norm: bool = true;
    }
}

impl StackGanSettings {
    /// Returns true for each stage that is trained: stage I and stage II.
    pub(super) fn stages(&self) -> [bool; 2] {
        [self.stage != "2", self.stage != "1"]
    }

    /// Height and width of the images of stage I, where those of the data set are `size`.
    pub(super) fn small_size(&self, size: usize) -> usize {
        if self.stages()[1] { size / self.upscale.max(1) } else { size }
    }

    /// Returns true if a text encoder is trained in this run.
    pub(super) fn learns_text(&self) -> bool {
        [&self.stage1, &self.text_run, &self.text_embeddings, &self.text.text_weights]
            .iter()
            .all(|from| from.is_empty())
    }

    /// The sizes of one stage's networks.
    pub(super) fn sizes(&self, text_dim: usize, size: usize, second: bool) -> StackGanConfig {
        let or = |own: usize, common: usize| if second && own > 0 { own } else { common };
        StackGanConfig {
            text_dim,
            condition_dim: self.gan.condition,
            conditioning: self.gan.conditioning,
            z_dim: self.gan.noise,
            gf_dim: or(self.gan.stage2_gf_dim, self.gan.gf_dim),
            df_dim: or(self.gan.stage2_df_dim, self.gan.df_dim),
            residual_blocks: self.gan.residual_blocks,
            stage_one_size: self.small_size(size),
            stage_two_size: size,
            sync_batch_norm: self.gan.sync_batch_norm,
        }
    }

    /// The parts of the run of the text encoder, of stage I and of stage II; those that are not trained are empty.
    pub(super) fn parts(&self) -> [[f64; 2]; 3] {
        let text = if self.learns_text() { self.text_part } else { 0.0 };
        match self.stages() {
            [true, true] => [[0.0, text], [text, self.stage1_part], [self.stage1_part, 1.0]],
            [true, false] => [[0.0, text], [text, 1.0], [1.0, 1.0]],
            [false, _] => [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]],
        }
    }
}

/// Checks the settings of a StackGAN against each other and against the configuration.
pub(super) fn check(settings: &StackGanSettings, config: &Config, relations: &mut Relations<'_>) {
    check_stages(settings, relations);
    for (key, value) in [
        ("model.condition", settings.gan.condition),
        ("model.noise", settings.gan.noise),
        ("model.gf_dim", settings.gan.gf_dim),
        ("model.df_dim", settings.gan.df_dim),
    ] {
        relations.positive(key, value as u64);
    }
    relations.not_negative("model.kl_weight", settings.gan.kl_weight);
    relations.not_negative("model.matching_weight", settings.gan.matching_weight);
    relations.not_negative("model.words_weight", settings.gan.words_weight);
    check_texts(settings, relations);
    let normalise = config.data.normalise;
    relations.require(
        normalise == Normalise::SYMMETRIC,
        "data.normalise",
        format!("model.kind {} draws from -1 to 1, but data.normalise is {normalise}", config.model.kind),
    );
    check_sizes(settings, config.model.image_size, relations);
    settings.text.check(relations);
}

/// Checks which stages are trained, and in which part of the run.
fn check_stages(settings: &StackGanSettings, relations: &mut Relations<'_>) {
    let stage = &settings.stage;
    relations.require(
        ["1", "2", "both"].contains(&stage.as_str()),
        "model.stage",
        format!("model.stage = {stage:?} is none of \"1\", \"2\" and \"both\""),
    );
    let alone = stage == "2";
    relations.require(
        alone != settings.stage1.is_empty(),
        "model.stage1",
        match alone {
            true => {
                "model.stage = 2 needs model.stage1, the folder of a run that has trained stage I".to_owned()
            }
            false => {
                format!("model.stage1 is for model.stage = 2; model.stage = {stage} trains stage I itself")
            }
        },
    );
    let [[_, text_ends], [_, ends], _] = settings.parts();
    relations.require(
        stage != "both" || (settings.stage1_part > text_ends && settings.stage1_part < 1.0),
        "model.stage1_part",
        format!("model.stage1_part = {ends} is not between {text_ends}, where stage I begins, and 1"),
    );
}

/// Checks the source of the vectors of texts.
fn check_texts(settings: &StackGanSettings, relations: &mut Relations<'_>) {
    let alone = settings.stage == "2";
    let from = [
        ("text_run", &settings.text_run),
        ("text_embeddings", &settings.text_embeddings),
        ("text_weights", &settings.text.text_weights),
    ];
    let from: Vec<_> =
        from.iter().filter(|(_, from)| !from.is_empty()).map(|(key, _)| format!("model.{key}")).collect();
    relations.require(
        from.len() < 2,
        "model.text_run",
        format!("{} say twice where text vectors come from", from.join(" and ")),
    );
    relations.require(
        !alone || from.iter().all(|key| key == "model.text_embeddings"),
        "model.text_run",
        format!("model.stage1 brings its text encoder with it, so that {} is not needed", from.join(", ")),
    );
    let without_tower = from.iter().find(|key| *key != "model.text_run");
    relations.require(
        settings.gan.matching_weight == 0.0 || without_tower.is_none(),
        "model.matching_weight",
        format!(
            "model.matching_weight needs an image tower that was trained with the text encoder, which {} does not bring; set it to 0",
            without_tower.map_or("", String::as_str)
        ),
    );
    let [[_, text_ends], ..] = settings.parts();
    relations.fraction("model.text_part", settings.text_part);
    relations.require(
        !settings.learns_text() || text_ends > 0.0,
        "model.text_part",
        "model.text_part = 0, but the text encoder comes from nowhere else".to_owned(),
    );
}

/// Checks that the images of both stages, `size` pixels wide in the end, fit the widths of the networks.
fn check_sizes(settings: &StackGanSettings, size: usize, relations: &mut Relations<'_>) {
    let (upscale, small, second) = (&settings.upscale, settings.small_size(size), settings.stages()[1]);
    relations.require(
        !second || (*upscale >= 2 && upscale.is_power_of_two() && size.is_multiple_of(*upscale)),
        "model.upscale",
        format!(
            "model.upscale = {upscale} is not 2, 4 or more, by which model.image_size {size} can be divided"
        ),
    );
    relations.require(
        small >= 8 && small.is_power_of_two(),
        "model.image_size",
        format!("images of stage I are {small} pixels wide, which is not 8, 16, 32 or more"),
    );
    if small >= 8 && small.is_power_of_two() {
        let doublings = small.ilog2() - 2;
        relations.require(
            (8 * settings.gan.gf_dim).is_multiple_of(1 << doublings),
            "model.gf_dim",
            format!(
                "8 times model.gf_dim {} cannot be halved {doublings} times, as stage I does",
                settings.gan.gf_dim
            ),
        );
        let width =
            if settings.gan.stage2_gf_dim > 0 { settings.gan.stage2_gf_dim } else { settings.gan.gf_dim };
        let doublings = 2 + upscale.max(&1).ilog2();
        relations.require(
            !second || (4 * width).is_multiple_of(1 << doublings),
            "model.stage2_gf_dim",
            format!("4 times the width {width} of stage II's generator cannot be halved {doublings} times"),
        );
    }
}
