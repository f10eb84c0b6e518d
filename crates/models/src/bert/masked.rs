//! The head that restores masked tokens.

use std::sync::Arc;

use phalanx_tensor::loss::{CrossEntropyOptions, RowTargets};
use phalanx_tensor::nn::{LayerNorm, Linear};
use phalanx_tensor::{Block, Init, Result, Scope, Tape, Value, ops};

use super::{Bert, BertConfig, EncoderInput, linear};
use crate::FeedForwardActivation;
use crate::run_block::run_block;
use crate::token_head::{HeadBias, TokenHead};

/// The layer in front of the product with the table of tokens.
#[derive(Debug)]
struct Transform {
    name: String,
    dense: Linear,
    activation: FeedForwardActivation,
    norm: LayerNorm,
}

impl Block for Transform {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes states [.., C].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let hidden = self.activation.apply(tape, &self.dense.forward(tape, &inputs[0])?)?;
        Ok(vec![self.norm.forward(tape, &hidden)?])
    }
}

/// BERT that restores masked tokens: `BertForMaskedLM` of Hugging Face's transformers. The product with the vocabulary is
/// computed for chosen places only.
#[derive(Debug, Clone)]
pub struct BertMasked {
    bert: Bert,
    transform: Arc<dyn Block>,
    /// The table of tokens with a bias.
    head: TokenHead,
}

impl BertMasked {
    /// Registers the parameters of [`Bert`] and `cls.predictions.…`. The product with the vocabulary has the table of
    /// tokens as its weight.
    ///
    /// # Errors
    /// If a name is taken, the heads do not divide the width, or a size is 0.
    pub fn new(scope: &Scope, config: &BertConfig) -> Result<Self> {
        let bert = Bert::new(scope, config)?;
        let head = scope.pp("cls").pp("predictions");
        let transform = head.pp("transform").block();
        let table = bert.blocks[0].name().to_owned();
        let transform = Transform {
            name: transform.block_name().to_owned(),
            dense: linear(&transform.pp("dense"), config.width, config.width, config)?,
            activation: config.activation,
            norm: LayerNorm::new(&transform.pp("LayerNorm"), config.width, config.eps)?,
        };
        let bias = HeadBias::Trained(head.in_block(&table).param("bias", config.vocab, Init::ZEROS)?);
        let head = TokenHead { block: table, weight: bert.tokens.clone(), bias };
        Ok(Self { bert, transform: Arc::new(transform), head })
    }

    /// Returns the model without its head.
    pub fn bert(&self) -> &Bert {
        &self.bert
    }

    /// Computes the states in front of the product with the vocabulary at chosen places, [places, width]. A place is
    /// row·T + column.
    ///
    /// # Errors
    /// Errors of [`Bert::forward`], or if a place is out of range.
    pub fn states_at(&self, tape: &Tape, input: &EncoderInput, places: &[u32]) -> Result<Value> {
        let states = self.bert.forward(tape, input)?;
        run_block(tape, &self.transform, &[ops::select_rows(tape, &states, places)?])
    }

    /// Computes the logits of the tokens from [`BertMasked::states_at`], [places, vocab].
    ///
    /// # Errors
    /// If the last dimension is not the width.
    pub fn logits(&self, tape: &Tape, states: &Value) -> Result<Value> {
        self.head.logits(tape, states)
    }

    /// Computes the cross-entropy of [`BertMasked::logits`] with the targets, a row for each place, without keeping logits.
    ///
    /// # Errors
    /// Errors of [`phalanx_tensor::loss::linear_cross_entropy`].
    pub fn loss(
        &self,
        tape: &Tape,
        states: &Value,
        targets: &RowTargets<'_>,
        options: CrossEntropyOptions,
    ) -> Result<Value> {
        self.head.loss(tape, states, targets, options)
    }
}
