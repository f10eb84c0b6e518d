//! Language models: a step on texts of random tokens, with AdamW.

use anyhow::Result;
use candle_core::{Device, Tensor};
use phalanx_models::{Decoder, DecoderConfig, Gpt2, Gpt2Config, LanguageModel, TokenInput};
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_tensor::optim::Adam;
use phalanx_tensor::{ComputeDevice, ParamStore, StoreBuilder};

use super::TrainArgs;
use super::model::{Forward, Model, layout};

impl Model {
    /// True for models of tokens, which have texts in place of images.
    pub(super) fn is_language(self) -> bool {
        matches!(self, Self::Gpt2 | Self::GptSmall | Self::Llama20m)
    }
}

/// Returns the optimizer, with the settings of nanoGPT.
pub(super) fn optimizer() -> Adam {
    Adam::decoupled((0.9, 0.95), 1e-8, 0.1)
}

fn model(builder: &StoreBuilder, args: &TrainArgs) -> Result<Box<dyn LanguageModel>> {
    let root = builder.root();
    let gpt2 = Gpt2Config { context: args.tokens.max(1024), ..Gpt2Config::default().with_dropout(0.0) };
    Ok(match args.model() {
        Model::Llama20m => Box::new(Decoder::new(
            &root,
            &DecoderConfig { context: args.tokens, ..DecoderConfig::default() },
        )?),
        Model::GptSmall => {
            Box::new(Gpt2::new(&root, &Gpt2Config { layers: 6, width: 384, heads: 6, inner: 1536, ..gpt2 })?)
        }
        _ => Box::new(Gpt2::new(&root, &gpt2)?),
    })
}

/// Builds the model and its loss on a rank's texts, whose every token is predicted.
pub(super) fn build(args: &TrainArgs, device: &ComputeDevice) -> Result<(ParamStore, Forward)> {
    let builder = StoreBuilder::new(layout(args, device));
    let (model, tokens, batch) = (model(&builder, args)?, args.tokens, args.batch);
    // Random numbers of a linear congruence: all tokens occur alike.
    let vocab = model.vocab() as u64;
    let mut state = 1_u64;
    let ids: Vec<u32> = (0..=batch * tokens)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % vocab) as u32
        })
        .collect();
    let labels = ids[1..].to_vec();
    let input = TokenInput::new(&Tensor::from_slice(&ids[..batch * tokens], (batch, tokens), &Device::Cpu)?)?;
    let forward: Forward = Box::new(move |tape, over| {
        let over = match over {
            LossDivisor::Count(texts) => LossDivisor::Count(texts * tokens),
            other => other,
        };
        let hidden = model.hidden(tape, &input)?;
        let targets = RowTargets { labels: (&labels).into(), weights: None, over };
        model.loss(tape, &hidden, &targets, CrossEntropyOptions::default())
    });
    Ok((builder.build()?, forward))
}
