//! The head that classifies texts.

use std::sync::Arc;

use phalanx_tensor::nn::Linear;
use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value, ops};

use super::{Bert, BertConfig, EncoderInput, linear};
use crate::run_block::run_block;

/// The state of the first token, through a layer with tanh.
#[derive(Debug)]
struct Pooler {
    name: String,
    dense: Linear,
}

impl Block for Pooler {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes states [N, T, C]. Returns [N, C].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let first = ops::select_positions(tape, &inputs[0], &vec![0; inputs[0].dims()[0]])?;
        Ok(vec![ops::tanh(tape, &self.dense.forward(tape, &first)?)?])
    }
}

/// The logits of the classes.
#[derive(Debug)]
struct Head {
    name: String,
    classifier: Linear,
    dropout: f64,
}

impl Block for Head {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes pooled states [N, C].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let pooled = ops::dropout(tape, &inputs[0], self.dropout)?;
        Ok(vec![self.classifier.forward(tape, &pooled)?])
    }
}

/// BERT that classifies texts: `BertForSequenceClassification` of Hugging Face's transformers.
#[derive(Debug, Clone)]
pub struct BertClassifier {
    bert: Bert,
    pooler: Arc<dyn Block>,
    head: Arc<dyn Block>,
}

impl BertClassifier {
    /// Registers the parameters of [`Bert`], `bert.pooler.dense.…` and `classifier.…`.
    ///
    /// # Errors
    /// If a name is taken, the heads do not divide the width, a size is 0, or there is no class.
    pub fn new(scope: &Scope, config: &BertConfig, classes: usize) -> Result<Self> {
        if classes == 0 {
            return Err(TensorError::Shape { op: "bert", problem: "no classes".into() });
        }
        let bert = Bert::new(scope, config)?;
        let (pooler, head) = (scope.pp("bert").pp("pooler").block(), scope.pp("classifier").block());
        let pooler = Pooler {
            name: pooler.block_name().to_owned(),
            dense: linear(&pooler.pp("dense"), config.width, config.width, config)?,
        };
        let head = Head {
            name: head.block_name().to_owned(),
            classifier: linear(&head, config.width, classes, config)?,
            dropout: config.hidden_dropout,
        };
        Ok(Self { bert, pooler: Arc::new(pooler), head: Arc::new(head) })
    }

    /// Returns the model without its head.
    pub fn bert(&self) -> &Bert {
        &self.bert
    }

    /// Computes the state of each text that the head reads, [N, width].
    ///
    /// # Errors
    /// Errors of [`Bert::forward`].
    pub fn pooled(&self, tape: &Tape, input: &EncoderInput) -> Result<Value> {
        run_block(tape, &self.pooler, &[self.bert.forward(tape, input)?])
    }

    /// Computes the logits of the classes from [`BertClassifier::pooled`], [N, classes].
    ///
    /// # Errors
    /// If the last dimension is not the width.
    pub fn classify(&self, tape: &Tape, pooled: &Value) -> Result<Value> {
        run_block(tape, &self.head, std::slice::from_ref(pooled))
    }

    /// Computes the logits of the classes, [N, classes].
    ///
    /// # Errors
    /// Errors of [`Bert::forward`].
    pub fn forward(&self, tape: &Tape, input: &EncoderInput) -> Result<Value> {
        self.classify(tape, &self.pooled(tape, input)?)
    }
}
