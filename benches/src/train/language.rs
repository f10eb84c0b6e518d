//! Language models: a step on texts of random tokens, with AdamW.

use anyhow::Result;
use candle_core::{Device, Tensor};
use phalanx_models::{
    BertConfig, BertMasked, Decoder, DecoderConfig, EncoderInput, Gpt2, Gpt2Config, LanguageModel,
    SourceTexts, TokenInput, TranslationConfig, Translator,
};
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_tensor::optim::Adam;
use phalanx_tensor::{ComputeDevice, ParamStore, StoreBuilder, Value};

use super::TrainArgs;
use super::model::{Forward, Model, layout};

impl Model {
    /// True for models of tokens, which have texts in place of images.
    pub(super) fn is_language(self) -> bool {
        matches!(self, Self::Gpt2 | Self::GptSmall | Self::Llama20m | Self::Bert | Self::Translation)
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

/// Builds the model and its loss on a rank's texts.
pub(super) fn build(args: &TrainArgs, device: &ComputeDevice) -> Result<(ParamStore, Forward)> {
    let builder = StoreBuilder::new(layout(args, device));
    let forward = match args.model() {
        Model::Bert => bert(&builder, args)?,
        Model::Translation => translation(&builder, args)?,
        _ => next_token(&builder, args)?,
    };
    Ok((builder.build()?, forward))
}

/// Multiplies the number of texts by that of the counted tokens of each.
fn tokens_over(over: LossDivisor, tokens: usize) -> LossDivisor {
    match over {
        LossDivisor::Count(texts) => LossDivisor::Count(texts * tokens),
        other => other,
    }
}

/// Builds a model that predicts every next token.
fn next_token(builder: &StoreBuilder, args: &TrainArgs) -> Result<Forward> {
    let (model, tokens, batch) = (model(builder, args)?, args.tokens, args.batch);
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

/// Builds BERT-base with its head on 15 % of the tokens.
fn bert(builder: &StoreBuilder, args: &TrainArgs) -> Result<Forward> {
    let config = BertConfig { context: args.tokens.max(512), ..BertConfig::default().with_dropout(0.0) };
    let model = BertMasked::new(&builder.root(), &config)?;
    let (tokens, batch) = (args.tokens, args.batch);
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
fn translation(builder: &StoreBuilder, args: &TrainArgs) -> Result<Forward> {
    let config =
        TranslationConfig { context: args.tokens.max(512), dropout: 0.0, ..TranslationConfig::default() };
    let model = Translator::new(&builder.root(), &config)?;
    let (tokens, batch) = (args.tokens, args.batch);
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
