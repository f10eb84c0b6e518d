//! Language models: a step on texts of random tokens, with AdamW.

use std::sync::Arc;

use anyhow::Result;
use candle_core::{Device, Tensor};
use phalanx_models::{
    BertConfig, BertMasked, Decoder, DecoderConfig, EncoderInput, Gpt2, Gpt2Config, LanguageModel,
    SourceTexts, TokenInput, TranslationConfig, Translator,
};
use phalanx_sharding::pipeline::BuiltModel;
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_tensor::optim::Adam;
use phalanx_tensor::{
    BuildOptions, ComputeDevice, ParamLayout, ParamStore, Scope, StoreBuilder, Tape, TensorPlan, Value,
};

use super::TrainArgs;
use super::model::{Forward, Model, options};

impl Model {
    /// True for models of tokens, which have texts in place of images.
    pub(super) fn is_language(self) -> bool {
        matches!(
            self,
            Self::Gpt2 | Self::GptSmall | Self::GptWide | Self::Llama20m | Self::Bert | Self::Translation
        )
    }
}

/// Returns the optimizer, with the settings of nanoGPT.
pub(super) fn optimizer() -> Adam {
    Adam::decoupled((0.9, 0.95), 1e-8, 0.1)
}

/// The sizes of a model, without dropout.
enum Sizes {
    Gpt2(Gpt2Config),
    Decoder(DecoderConfig),
    Bert(BertConfig),
    Translation(TranslationConfig),
}

impl Sizes {
    fn of(args: &TrainArgs) -> Self {
        let gpt2 = Gpt2Config { context: args.tokens.max(1024), ..Gpt2Config::default().with_dropout(0.0) };
        match args.model() {
            Model::Llama20m => {
                Self::Decoder(DecoderConfig { context: args.tokens, ..DecoderConfig::default() })
            }
            Model::Bert => Self::Bert(BertConfig {
                context: args.tokens.max(512),
                ..BertConfig::default().with_dropout(0.0)
            }),
            Model::Translation => Self::Translation(TranslationConfig {
                context: args.tokens.max(512),
                dropout: 0.0,
                ..TranslationConfig::default()
            }),
            Model::GptSmall => {
                Self::Gpt2(Gpt2Config { layers: 6, width: 384, heads: 6, inner: 1536, ..gpt2 })
            }
            Model::GptWide => {
                Self::Gpt2(Gpt2Config { layers: 4, width: 1024, heads: 16, inner: 4096, ..gpt2 })
            }
            _ => Self::Gpt2(gpt2),
        }
    }

    fn plan(&self) -> phalanx_tensor::Result<TensorPlan> {
        match self {
            Self::Gpt2(config) => config.tensor_plan(),
            Self::Decoder(config) => config.tensor_plan(),
            Self::Bert(config) => config.tensor_plan(),
            Self::Translation(config) => config.tensor_plan(),
        }
    }
}

/// Returns random numbers below `vocab` by a linear congruence: all tokens occur alike.
fn random_tokens(number: usize, vocab: usize) -> Vec<u32> {
    let mut state = 1_u64;
    (0..number)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % vocab as u64) as u32
        })
        .collect()
}

/// Returns tokens as a value [batch, tokens].
fn rows(ids: &[u32], batch: usize) -> Result<Value> {
    Ok(Value::constant(Tensor::from_slice(ids, (batch, ids.len() / batch), &Device::Cpu)?))
}

/// Builds the model, with the layout of its parameters, and its loss on a number of texts.
pub(super) fn build(
    args: &TrainArgs,
    device: &ComputeDevice,
    samples: usize,
    layout_of: &dyn Fn(&TensorPlan) -> Option<Arc<dyn ParamLayout>>,
) -> Result<(ParamStore, Forward)> {
    let sizes = Sizes::of(args);
    let builder =
        StoreBuilder::new(BuildOptions { layout: layout_of(&sizes.plan()?), ..options(args, device) });
    let (root, texts) = (builder.root(), Texts { number: samples, tokens: args.tokens });
    let forward = match &sizes {
        Sizes::Bert(config) => bert(&root, config, texts)?,
        Sizes::Translation(config) => translation(&root, config, texts)?,
        Sizes::Gpt2(config) => next_token(Gpt2::new(&root, config)?, texts)?,
        Sizes::Decoder(config) => next_token(Decoder::new(&root, config)?, texts)?,
    };
    Ok((builder.build()?, forward))
}

/// The texts of a rank.
#[derive(Clone, Copy)]
struct Texts {
    number: usize,
    tokens: usize,
}

/// Multiplies the number of texts by that of the counted tokens of each.
fn tokens_over(over: LossDivisor, tokens: usize) -> LossDivisor {
    match over {
        LossDivisor::Count(texts) => LossDivisor::Count(texts * tokens),
        other => other,
    }
}

/// Builds a model that predicts every next token.
fn next_token(model: impl LanguageModel + 'static, texts: Texts) -> Result<Forward> {
    let Texts { number: batch, tokens } = texts;
    let ids = random_tokens(batch * tokens + 1, model.vocab());
    let labels = ids[1..].to_vec();
    let input = TokenInput::new(&Tensor::from_slice(&ids[..batch * tokens], (batch, tokens), &Device::Cpu)?)?;
    Ok(Box::new(move |tape, over| {
        let hidden = model.hidden(tape, &input)?;
        let over = tokens_over(over, tokens);
        let targets = RowTargets { labels: (&labels).into(), weights: None, over };
        model.loss(tape, &hidden, &targets, CrossEntropyOptions::default())
    }))
}

/// Builds a GPT-2 with the layout of its parameters, and its loss on one text.
pub(crate) fn next_tokens(
    config: &Gpt2Config,
    tokens: usize,
    device: &ComputeDevice,
    layout: Option<Arc<dyn ParamLayout>>,
) -> Result<BuiltModel> {
    let options = BuildOptions { device: device.clone(), layout, ..BuildOptions::default() };
    let builder = StoreBuilder::new(options);
    let forward = next_token(Gpt2::new(&builder.root(), config)?, Texts { number: 1, tokens })?;
    let loss = move |tape: &Tape, _: usize| forward(tape, LossDivisor::Count(1));
    Ok(BuiltModel { store: builder.build()?, loss: Box::new(loss) })
}

/// Builds BERT-base with its head on 15 % of the tokens.
fn bert(root: &Scope, config: &BertConfig, texts: Texts) -> Result<Forward> {
    let model = BertMasked::new(root, config)?;
    let Texts { number: batch, tokens } = texts;
    let ids = random_tokens(batch * tokens, config.vocab);
    let masked = masked_of(tokens);
    let spread = |row: usize| (0..masked).map(move |at| (row * tokens + at * tokens / masked) as u32);
    let places: Vec<u32> = (0..batch).flat_map(spread).collect();
    let labels: Vec<u32> = places.iter().map(|place| ids[*place as usize]).collect();
    let input = EncoderInput {
        tokens: rows(&ids, batch)?,
        types: rows(&vec![0; batch * tokens], batch)?,
        lengths: Value::constant(Tensor::from_vec(vec![tokens as u32; batch], batch, &Device::Cpu)?),
    };
    Ok(Box::new(move |tape, over| {
        let states = model.states_at(tape, &input, &places)?;
        let targets = RowTargets { labels: (&labels).into(), weights: None, over: tokens_over(over, masked) };
        model.loss(tape, &states, &targets, CrossEntropyOptions::default())
    }))
}

/// The tokens of a text that BERT restores.
fn masked_of(tokens: usize) -> usize {
    (tokens * 15 / 100).max(1)
}

/// Builds the Transformer's base model in Marian's layout, on pairs of texts of the same length.
fn translation(root: &Scope, config: &TranslationConfig, texts: Texts) -> Result<Forward> {
    let model = Translator::new(root, config)?;
    let Texts { number: batch, tokens } = texts;
    let ids = random_tokens(3 * batch * tokens, config.vocab - 1);
    let [source, seen, labels] =
        [0, 1, 2].map(|part| ids[part * batch * tokens..][..batch * tokens].to_vec());
    let lengths = Value::constant(Tensor::from_vec(vec![tokens as u32; batch], batch, &Device::Cpu)?);
    let source = SourceTexts { tokens: rows(&source, batch)?, lengths };
    let seen = rows(&seen, batch)?;
    let options = CrossEntropyOptions { smoothing: 0.1, ..CrossEntropyOptions::default() };
    Ok(Box::new(move |tape, over| {
        let states = model.encode(tape, &source)?;
        let hidden = model.decode(tape, &states, &source.lengths, &seen)?;
        let over = tokens_over(over, tokens);
        let targets = RowTargets { labels: (&labels).into(), weights: None, over };
        model.loss(tape, &hidden, &targets, options)
    }))
}
