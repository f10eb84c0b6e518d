//! A language model of one's own: attention learns the characters of a text file, line by line, each of its own length.
//!
//! `cargo run --release --example own_language_model -- train --set data.path=TEXT --ranks 2`; see also `--help`.
use std::sync::Arc;

use candle_core::Tensor;
use phalanx::{Program, Setup, StepInput, TaskSpec, TrainError, Training, config::Config, number};
use phalanx_data::{CollatedDataset, SequenceCollation, SequenceConfig, Split};
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_tensor::nn::{Embedding, Linear, MultiHeadAttention};
use phalanx_tensor::ops::AttentionOptions;
use phalanx_tensor::{Block, Init, Tape, TensorError, Value, loss, ops};
use phalanx_text::{Corpus, CorpusConfig, SequenceBorders, TokenSequences, Tokenizer};

const WIDTH: usize = 32;
const INIT: Init = Init::Normal { mean: 0.0, std: 0.2 };

/// Attention to the characters before, and a layer for each by itself. Where ranks share parameters a block's are gathered.
#[derive(Debug)]
struct Layer(&'static str, MultiHeadAttention, Linear);

impl Block for Layer {
    fn name(&self) -> &str {
        self.0
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>, TensorError> {
        let x = ops::add(tape, &inputs[0], &self.1.forward(tape, &inputs[0], &AttentionOptions::causal())?)?;
        Ok(vec![ops::add(tape, &x, &ops::gelu(tape, &self.2.forward(tape, &x)?)?)?])
    }
}

struct Model(Embedding, Embedding, Arc<dyn Block>, Linear);

impl Model {
    fn build(setup: &mut Setup<'_>, _: &()) -> Result<Training<Self>, TrainError> {
        let vocab = open(setup.config(), Split::Train)?.0.vocab();
        let model = setup.model(|scope| {
            let layer = scope.pp("layer").block();
            let attention = MultiHeadAttention::new(&layer.pp("attention"), WIDTH, 4, INIT, INIT)?;
            let layer = Layer("layer", attention, Linear::new(&layer.pp("linear"), WIDTH, WIDTH)?);
            let tokens = Embedding::new(&scope.pp("tokens"), vocab, WIDTH, INIT)?;
            let places = Embedding::new(&scope.pp("places"), 256, WIDTH, INIT)?;
            Ok(Self(tokens, places, Arc::new(layer), Linear::new(&scope.pp("head"), WIDTH, vocab)?))
        })?;
        Ok(Training::new(format!("attention to {vocab} characters"), model)
            .loss(Self::loss)
            .evaluate(["loss"], |model, step| Ok([number(&model.loss(step)?)?])))
    }

    fn loss(&self, step: &StepInput<'_>) -> Result<Value, TrainError> {
        let (tape, tokens) = (step.tape, step.batch.tensor("tokens")?);
        let places = Tensor::arange(0, tokens.dim(1)? as u32, tokens.device())?;
        let places = places.broadcast_as(tokens.shape())?.contiguous()?;
        let x = ops::add(tape, &self.0.forward(tape, tokens)?, &self.1.forward(tape, &places)?)?;
        let logits = self.3.forward(tape, &tape.run1(&self.2, &x)?)?;
        let (labels, weights) = (step.classes("targets")?, step.weights_of_places("mask")?);
        let over = LossDivisor::Sum(step.sum);
        let targets = RowTargets { labels: (&labels).into(), weights: Some(&weights), over };
        Ok(loss::cross_entropy_of_rows(tape, &logits, &targets, CrossEntropyOptions::default())?)
    }
}

/// Opens the characters of a text file, and the lines of one split.
fn open(config: &Config, split: Split) -> Result<(Tokenizer, TokenSequences), TrainError> {
    let corpus = Corpus::open(&config.data.path, &CorpusConfig::default())?;
    let tokenizer = corpus.tokenizer().expect("that of the text").clone();
    let line_feed = SequenceBorders::Behind(tokenizer.encode("\n")?[0]);
    let lines = TokenSequences::new(split.name(), corpus.parts(split)[0].clone(), line_feed, 256)?;
    Ok((tokenizer, lines))
}

fn main() -> std::process::ExitCode {
    let task = TaskSpec::new("text", "Learns a text's characters", Model::build).data(|(), config, split| {
        let lines = SequenceCollation::new(SequenceConfig { predict_next: true, ..Default::default() })?;
        Ok(Arc::new(CollatedDataset::new(Arc::new(open(config, split)?.1), lines)))
    });
    phalanx::main(&Program::new("own_language_model").task(task))
}
