//! A source text that was read, as a model of its translation.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_tensor::loss::{CrossEntropyOptions, RowTargets};
use phalanx_tensor::{Block as _, Result, Tape, TensorError, Value, ops};

use super::layer::{Layer, Source};
use super::{SourceTexts, Translator};
use crate::cache::KeyValueCache;
use crate::language_model::LanguageModel;
use crate::token_input::TokenInput;

/// Source texts that the encoder has read. It predicts the next token of their translations, so
/// [`generate`](crate::generate) and [`beam_search`](crate::beam_search) translate with it: a prompt is the start token.
///
/// Keys and values of the source are computed once for each layer of the decoder. A single source is that of all rows.
#[derive(Debug)]
pub struct TranslationSource<'a> {
    model: &'a Translator,
    lengths: Vec<u32>,
    /// For each layer of the decoder, [N, S, heads, D] each.
    kept: Vec<[Value; 2]>,
}

impl<'a> TranslationSource<'a> {
    /// Reads source texts.
    ///
    /// # Errors
    /// Errors of [`Translator::encode`].
    pub fn read(model: &'a Translator, tape: &Tape, source: &SourceTexts) -> Result<Self> {
        let states = model.encode(tape, source)?;
        let lengths = source.lengths.array()?.to_host()?.to_vec1::<u32>()?;
        let keep = |layer: &Arc<Layer>| tape.in_block(layer.name(), || layer.keep_source(tape, &states));
        let kept = model.decoder.iter().map(keep).collect::<Result<_>>()?;
        Ok(Self { model, lengths, kept })
    }

    /// Returns keys and values of the source for `rows` rows.
    fn for_rows(&self, tape: &Tape, kept: &[Value; 2], rows: usize) -> Result<[Value; 2]> {
        let spread = |value: &Value| match value.dims() {
            &[1, length, heads, dim] if rows != 1 => {
                ops::broadcast_as(tape, value, (rows, length, heads, dim))
            }
            _ => Ok(value.clone()),
        };
        Ok([spread(&kept[0])?, spread(&kept[1])?])
    }

    /// Returns the length of the source for each of `rows` rows.
    fn lengths(&self, rows: usize) -> Result<Value> {
        let lengths = match self.lengths.as_slice() {
            [only] => vec![*only; rows],
            all if all.len() == rows => all.to_vec(),
            all => {
                let problem = format!("{rows} translations of {} texts", all.len());
                return Err(TensorError::Shape { op: "translation", problem });
            }
        };
        Ok(Value::constant(Tensor::from_vec(lengths, rows, &Device::Cpu)?))
    }
}

impl LanguageModel for TranslationSource<'_> {
    fn vocab(&self) -> usize {
        self.model.config.vocab
    }

    fn context(&self) -> usize {
        self.model.config.context
    }

    fn hidden(&self, tape: &Tape, input: &TokenInput) -> Result<Value> {
        self.continue_hidden(tape, input, &mut self.empty_cache())
    }

    fn empty_cache(&self) -> KeyValueCache {
        KeyValueCache::new(self.model.decoder.len())
    }

    fn continue_hidden(&self, tape: &Tape, input: &TokenInput, cache: &mut KeyValueCache) -> Result<Value> {
        let (seen, model) = (cache.length(), self.model);
        model.check_length(input.tokens.dims(), seen)?;
        let &[rows, new] = input.tokens.dims() else { return Ok(input.tokens.clone()) };
        let lengths = self.lengths(rows)?;
        let embeddings = &model.embeddings[1];
        let mut x =
            tape.run_as(&embeddings.name, &input.tokens, |tokens| embeddings.at(tape, tokens, seen))?;
        for ((layer, kept), cache) in model.decoder.iter().zip(&self.kept).zip(cache.grow(new)) {
            let kept = self.for_rows(tape, kept, rows)?;
            let source = Source { kept: Some(&kept), states: None, lengths: &lengths };
            x = tape.run_as(layer.name(), &x, |x| layer.decode(tape, x, &source, Some(cache)))?;
        }
        model.finish(tape, 1, x)
    }

    fn logits(&self, tape: &Tape, hidden: &Value) -> Result<Value> {
        self.model.logits(tape, hidden)
    }

    fn loss(
        &self,
        tape: &Tape,
        hidden: &Value,
        targets: &RowTargets<'_>,
        options: CrossEntropyOptions,
    ) -> Result<Value> {
        self.model.loss(tape, hidden, targets, options)
    }
}
