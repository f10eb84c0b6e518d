//! The settings that encoders share, and their tokens.

use phalanx_config::{Config, Relations};
use phalanx_data::{JudgedSentences, SentencesDataset};
use phalanx_models::{BertConfig, EncoderInput};
use phalanx_tensor::Value;
use phalanx_text::{EncoderTokens, Tokenizer, TokenizerChoice};
use phalanx_trainer::engine::{StepInput, TrainError};

use super::columns::Columns;
use super::published;
use super::text::{TextSettings, Vocabulary};

phalanx_config::settings! {
    /// The settings of an encoder.
    pub(in crate::tasks) struct EncoderKeys {
        /// The number of layers.
        layers: usize = 4;
        /// Features of a token's state.
        width: usize = 128;
        /// Attention heads; they divide the width.
        heads: usize = 4;
        /// The longest text, in tokens, with those in front of it and behind it.
        context: usize = 64;
        /// Probability that an element of the embeddings, of attention weights, or of what a layer adds, is set to zero in
        /// training.
        dropout: f64 = 0.1;
        /// The `config.json` or the folder of a published model: its sizes are in place of `layers` to `heads`. Its weights are read by
        /// `model.weights`.
        config: String = String::new();
        /// The tokens of texts (`data.path`): `characters`, `bytes`, or the file or folder of a tokenizer. Empty: the `tokenizer.json`
        /// in the folder of the data, or else characters.
        tokenizer: String = String::new();
        /// Generated training texts, if there is no `data.path`.
        texts: usize = 20_000;
    }
}

/// The tokens that an encoder reads.
pub(super) struct EncoderVocabulary {
    /// The tokenizer, with the special tokens.
    pub(super) tokenizer: Tokenizer,
    /// The special tokens.
    pub(super) special: EncoderTokens,
    /// The rows of the table of tokens.
    pub(super) rows: usize,
}

impl EncoderKeys {
    /// Checks the relations of the settings.
    pub(super) fn check(&self, relations: &mut Relations<'_>) {
        let Self { layers, width, heads, context, texts, dropout, .. } = *self;
        for (key, size) in
            [("model.layers", layers), ("model.width", width), ("model.heads", heads), ("model.texts", texts)]
        {
            relations.positive(key, size as u64);
        }
        let relation =
            format!("model.context = {context}: a text and the two tokens around it need at least 3");
        relations.require(context > 2, "model.context", relation);
        relations.fraction("model.dropout", dropout);
        let relation = format!("model.heads = {heads}: {heads} heads do not divide a width of {width}");
        relations.require(heads == 0 || width.is_multiple_of(heads), "model.heads", relation);
    }

    /// Returns the sizes, with 0 rows of the table of tokens where the tokenizer decides.
    pub(super) fn sizes(&self) -> Result<BertConfig, TrainError> {
        let sizes = match self.config.as_str() {
            "" => BertConfig {
                vocab: 0,
                context: self.context,
                width: self.width,
                layers: self.layers,
                heads: self.heads,
                inner: 4 * self.width,
                ..BertConfig::default()
            },
            path => published(path, BertConfig::from_json)?,
        };
        Ok(sizes.with_dropout(self.dropout))
    }

    /// Returns the settings of the texts.
    pub(super) fn texts(&self, vocab: usize) -> TextSettings {
        TextSettings {
            context: self.context,
            tokenizer: self.tokenizer.clone(),
            published: self.config.clone(),
            vocab,
            apart: false,
            stride: 0,
            texts: self.texts,
        }
    }

    /// Returns the tokens; `of_texts` makes the tokenizer if neither the settings nor the folder of the data name one.
    pub(super) fn vocabulary(
        &self,
        config: &Config,
        of_texts: impl FnOnce() -> Result<Option<Tokenizer>, TrainError>,
    ) -> Result<EncoderVocabulary, TrainError> {
        let sizes = self.sizes()?;
        let tokenizer = match self.texts(sizes.vocab).choice() {
            TokenizerChoice::File(path) => Some(Tokenizer::open(path)?),
            TokenizerChoice::Bytes => Some(Tokenizer::bytes()),
            _ if config.data.path.is_empty() => Some(Tokenizer::words(SentencesDataset::words())?),
            _ => of_texts()?,
        };
        let Some(tokenizer) = tokenizer else {
            return Err(TrainError::Setup(format!(
                "{}: no tokenizer.json in its folder; set model.tokenizer to one",
                config.data.path
            )));
        };
        let (tokenizer, special) = tokenizer.for_encoder()?;
        let known = tokenizer.vocab();
        match sizes.vocab {
            0 => Ok(EncoderVocabulary { tokenizer, special, rows: known }),
            rows if rows < known => Err(TrainError::Setup(format!(
                "model.config: a vocabulary of {rows}, but the tokenizer {} has {known} tokens with those of encoders",
                tokenizer.name()
            ))),
            rows => Ok(EncoderVocabulary { tokenizer, special, rows }),
        }
    }
}

impl EncoderVocabulary {
    /// Returns the vocabulary of a language model.
    pub(super) fn named(self) -> Vocabulary {
        let about = format!("{} different tokens", self.rows);
        Vocabulary { rows: self.rows, tokenizer: Some(self.tokenizer), about }
    }
}

/// The names of the classes of generated sentences.
pub(super) fn generated_classes() -> Vec<String> {
    JudgedSentences::CLASSES.map(str::to_owned).to_vec()
}

/// Returns the columns of a batch that texts fill.
pub(super) fn columns(step: &StepInput<'_>) -> Result<Columns, TrainError> {
    let longest = step.classes("lengths")?.into_iter().max().unwrap_or(0) as usize;
    Columns::up_to(step, "tokens", longest)
}

/// Returns the texts of a batch, up to the longest.
pub(super) fn input(step: &StepInput<'_>) -> Result<EncoderInput, TrainError> {
    let columns = columns(step)?;
    Ok(EncoderInput {
        tokens: columns.value(step, "tokens")?,
        types: columns.value(step, "types")?,
        lengths: Value::constant(step.batch.tensor("lengths")?.clone()),
    })
}

/// Checks that texts of `length` tokens fit into the context of a model.
pub(super) fn check_context(length: usize, sizes: &BertConfig) -> Result<(), TrainError> {
    let context = sizes.context;
    if length <= context {
        return Ok(());
    }
    Err(TrainError::Setup(format!("model.context = {length}: the published model has {context} positions")))
}
