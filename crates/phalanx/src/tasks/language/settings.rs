//! The settings that language models share: their texts, and their sizes in files of transformers.

use phalanx_config::{Config, Settings};
use phalanx_trainer::engine::{TaskSpec, TrainError};

use super::text::{TextSettings, Vocabulary};
use super::{CONFIG, TOKENIZER};

phalanx_config::settings! {
    /// The settings of the texts of a model that predicts the next token.
    pub(in crate::tasks) struct TextKeys {
        /// The `config.json` or the folder of a published model: its sizes are in place of the keys of sizes. Its weights are read by
        /// `model.weights`.
        config: String = String::new();
        /// The tokens of texts (`data.path`): `characters`, `bytes`, or the file or folder of a tokenizer. Empty: the `tokenizer.json`
        /// in the folder of the data, or else characters.
        tokenizer: String = String::new();
        /// Documents that share a row do not see each other, and positions begin anew.
        apart: bool = false;
        /// Tokens between the windows of the test split; 0 = the context, so that windows do not overlap.
        stride: usize = 0;
        /// Generated training texts, if there is no `data.path`.
        texts: usize = 100_000;
    }
}

impl TextKeys {
    /// Returns the settings of texts of `context` tokens for a table of `vocab` rows; 0 = as many as the tokenizer has.
    pub(super) fn settings(&self, context: usize, vocab: usize) -> TextSettings {
        let Self { apart, stride, texts, .. } = *self;
        let (tokenizer, published) = (self.tokenizer.clone(), self.config.clone());
        TextSettings { context, tokenizer, published, vocab, apart, stride, texts }
    }
}

/// The settings of a task whose model reads tokens.
pub(super) trait LanguageSettings: Settings {
    /// The sizes of the model.
    type Sizes;

    /// Returns the sizes, with 0 rows of the table of tokens where the tokenizer decides.
    fn sizes(&self) -> Result<Self::Sizes, TrainError>;

    /// Returns the tokens of the configured texts.
    fn vocabulary(&self, config: &Config) -> Result<Vocabulary, TrainError>;

    /// Returns the sizes with the rows of a vocabulary.
    fn with_rows(sizes: Self::Sizes, rows: usize) -> Self::Sizes;

    /// Returns the `config.json` of transformers.
    fn json(&self, config: &Config, sizes: &Self::Sizes) -> Result<serde_json::Value, TrainError>;

    /// Returns the sizes of the model for a vocabulary.
    fn built(&self, vocabulary: &Vocabulary) -> Result<Self::Sizes, TrainError> {
        Ok(Self::with_rows(self.sizes()?, vocabulary.rows))
    }
}

/// Adds the files that belong to the weights of a language model.
pub(super) fn keeping_files<S: LanguageSettings>(spec: TaskSpec<S>) -> TaskSpec<S> {
    let spec = spec.keeps(TOKENIZER, |settings, config| {
        let tokenizer = settings.vocabulary(config)?.tokenizer;
        Ok(tokenizer.map(|tokenizer| tokenizer.json().as_bytes().to_vec()))
    });
    keeping_config(spec)
}

/// Adds the sizes of a language model, a file that belongs to its weights.
pub(super) fn keeping_config<S: LanguageSettings>(spec: TaskSpec<S>) -> TaskSpec<S> {
    spec.keeps(CONFIG, |settings, config| {
        let sizes = settings.built(&settings.vocabulary(config)?)?;
        Ok(Some(format!("{:#}\n", settings.json(config, &sizes)?).into_bytes()))
    })
}
