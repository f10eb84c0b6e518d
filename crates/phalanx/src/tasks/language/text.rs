//! The samples of language models: a file by characters or bytes, or generated sentences of known entropy.

use std::sync::Arc;

use phalanx_data::{
    BatchSource, CollatedDataset, PadTo, SentencesConfig, SentencesDataset, SequenceCollation,
    SequenceConfig, Split, TextFile, TextFileConfig, TextSample, TextUnit,
};

use phalanx_trainer::config::Config;
use phalanx_trainer::engine::TrainError;

/// The settings of texts that all language models have.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextSettings {
    /// The predictions of a text.
    pub(super) context: usize,
    /// True if a token of a file is a byte; else it is a character.
    pub(super) bytes: bool,
    /// Generated training texts.
    pub(super) texts: usize,
    /// Generated test texts.
    pub(super) test_texts: usize,
}

/// The samples of a split: texts of one more token than there are predictions.
pub(super) enum Text {
    File(TextFile),
    Sentences(SentencesDataset),
}

impl Text {
    pub(super) fn open(settings: TextSettings, config: &Config, split: Split) -> Result<Self, TrainError> {
        let length = settings.context;
        if config.data.path.is_empty() {
            let texts = if split == Split::Train { settings.texts } else { settings.test_texts };
            let config = SentencesConfig { split, texts, length, seed: config.train.seed };
            return Ok(Self::Sentences(SentencesDataset::new(config)?));
        }
        let unit = if settings.bytes { TextUnit::Bytes } else { TextUnit::Characters };
        // Each window ends with the first token of the next, so every token but the first is predicted once.
        let sample = TextSample::Windows { tokens: length + 1, stride: length };
        let of_file = TextFileConfig { split, unit, sample, ..TextFileConfig::default() };
        Ok(Self::File(TextFile::open(&config.data.path, of_file)?))
    }

    pub(super) fn vocab(&self) -> usize {
        match self {
            Self::File(file) => file.vocab(),
            Self::Sentences(_) => SentencesDataset::vocab(),
        }
    }

    /// Returns the facts that a reader of the loss needs.
    pub(super) fn describe(&self, length: usize) -> String {
        match self {
            Self::File(file) => format!("{} different tokens", file.vocab()),
            Self::Sentences(_) => {
                let (vocab, entropy) = (SentencesDataset::vocab(), SentencesDataset::entropy(length));
                format!("{vocab} words of generated sentences, whose entropy is {entropy:.4}")
            }
        }
    }
}

/// Opens the batches of a split.
pub(super) fn open(
    settings: TextSettings,
    config: &Config,
    split: Split,
) -> Result<Arc<dyn BatchSource>, TrainError> {
    let length = PadTo::Fixed(settings.context);
    let collation = SequenceCollation::new(SequenceConfig { padding: 0, length, predict_next: true })?;
    Ok(match Text::open(settings, config, split)? {
        Text::File(file) => Arc::new(CollatedDataset::new(Arc::new(file), collation)),
        Text::Sentences(sentences) => Arc::new(CollatedDataset::new(Arc::new(sentences), collation)),
    })
}
