//! A language model of one's own: a small transformer learns the characters of a text file, line by line.
//!
//! `cargo run --release --example own_language_model -- train --set data.path=TEXT --ranks 2`; `--help` says what else
//! there is. Lines differ in length: those of a batch are padded to the longest, and each character counts once.
use std::sync::Arc;

use candle_core::Tensor;
use phalanx_data::{
    Collated, SequenceCollation, SequenceConfig, Split, TextFile, TextFileConfig, TextSample,
};
use phalanx_tensor::nn::{Embedding, LayerNorm, Linear, MultiHeadAttention};
use phalanx_tensor::{Block, Init, Scope, Tape, TensorError, Value, loss, ops};
use phalanx_trainer::{Program, Setup, Step, TaskSpec, TrainError, Training, config::Config, number};

const WIDTH: usize = 32;
const LONGEST: usize = 64;

struct Layer(String, LayerNorm, MultiHeadAttention, Linear);

impl Layer {
    fn new(scope: &Scope) -> Result<Self, TensorError> {
        let init = Init::Normal { mean: 0.0, std: 0.1 };
        let attention = MultiHeadAttention::new(&scope.pp("attention"), WIDTH, 4, init, init)?;
        let linear = Linear::new(&scope.pp("linear"), WIDTH, WIDTH)?;
        Ok(Self(
            scope.block_name().to_owned(),
            LayerNorm::new(&scope.pp("norm"), WIDTH, 1e-5)?,
            attention,
            linear,
        ))
    }
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.0
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>, TensorError> {
        let mixed = self.2.forward(tape, &self.1.forward(tape, &inputs[0])?, true)?;
        let x = ops::add(tape, &inputs[0], &mixed)?;
        Ok(vec![ops::add(tape, &x, &ops::gelu(tape, &self.3.forward(tape, &x)?)?)?])
    }
}

struct Model(Embedding, Embedding, Vec<Arc<Layer>>, Linear);

impl Model {
    fn build(setup: &mut Setup<'_>, _: &()) -> Result<Training<Self>, TrainError> {
        let (vocab, init) =
            (text(setup.config(), Split::Train)?.vocab(), Init::Normal { mean: 0.0, std: 0.1 });
        let model = setup.model(|scope| {
            let layers = (0..2).map(|index| Ok(Arc::new(Layer::new(&scope.pp(index).block())?)));
            let tokens = Embedding::new(&scope.pp("tokens"), vocab, WIDTH, init)?;
            let places = Embedding::new(&scope.pp("places"), LONGEST, WIDTH, init)?;
            let layers = layers.collect::<Result<_, TensorError>>()?;
            Ok(Self(tokens, places, layers, Linear::new(&scope.pp("head"), WIDTH, vocab)?))
        })?;
        let about = format!("a transformer of {vocab} characters");
        Ok(Training::new(about, model)
            .loss(Self::loss)
            .evaluate(["loss"], |model, step| Ok([number(&model.loss(step)?)?])))
    }

    fn loss(&self, step: &Step<'_>) -> Result<Value, TrainError> {
        let tokens = step.batch.tensor("tokens")?;
        let places =
            Tensor::arange(0, tokens.dim(1)? as u32, tokens.device())?.broadcast_as(tokens.shape())?;
        let (tokens, places) =
            (self.0.forward(step.tape, tokens)?, self.1.forward(step.tape, &places.contiguous()?)?);
        let mut x = ops::add(step.tape, &tokens, &places)?;
        for layer in &self.2 {
            x = step.tape.run1(layer, &x)?;
        }
        let targets = step.classes("targets")?;
        step.mean_of_places(&self.3.forward(step.tape, &x)?, "mask", |logits, rows, over| {
            loss::cross_entropy(step.tape, logits, &targets[rows], 0.0, over)
        })
    }
}

fn text(config: &Config, split: Split) -> Result<TextFile, TrainError> {
    let sample = TextSample::Lines { max_tokens: LONGEST };
    Ok(TextFile::open(&config.data.path, TextFileConfig { split, sample, ..Default::default() })?)
}

fn main() -> std::process::ExitCode {
    let lines = SequenceConfig { predict_next: true, ..Default::default() };
    let task = TaskSpec::new("characters", "Learns a text's characters", Model::build).data(
        move |(), config, split| {
            Ok(Arc::new(Collated::new(Arc::new(text(config, split)?), SequenceCollation::new(lines)?)))
        },
    );
    phalanx_trainer::main(&Program::new("own_language_model").task(task))
}
