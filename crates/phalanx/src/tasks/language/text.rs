//! The samples of language models: texts, files of tokens, or generated sentences of known entropy.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use phalanx_config::{Config, Relations};
use phalanx_data::{
    BatchSource, CollatedDataset, PadTo, SentencesConfig, SentencesDataset, SequenceCollation,
    SequenceConfig, Split,
};
use phalanx_text::{
    Corpus, CorpusConfig, DocumentBorders, TokenWindows, Tokenizer, TokenizerChoice, WindowCollation,
    WindowsConfig,
};
use phalanx_trainer::engine::TrainError;

use super::newest::{Newest, changed};

/// Files of tokenizers in folders of published models.
const FILES: [&str; 4] =
    [phalanx_text::TOKENIZER_FILE, "merges.txt", "tokenizer.model", phalanx_text::MARIAN_FILES[0]];

/// Generated test texts.
const TEST_TEXTS: usize = 500;

/// The settings of texts that all language models have.
#[derive(Debug, Clone)]
pub(super) struct TextSettings {
    /// The predictions of a text.
    pub(super) context: usize,
    /// The tokenizer: a name or a path.
    pub(super) tokenizer: String,
    /// The `config.json` or the folder of a published model; empty without one.
    pub(super) published: String,
    /// Rows of the table of tokens of a published model; 0 = as many as the tokenizer has.
    pub(super) vocab: usize,
    /// True if documents of a row do not see each other.
    pub(super) apart: bool,
    /// Tokens between the windows of the test split; 0 = the context.
    pub(super) stride: usize,
    /// Generated training texts.
    pub(super) texts: usize,
}

/// The tokens that a model reads.
#[derive(Debug, Clone)]
pub(super) struct Vocabulary {
    /// The tokenizer, if it is known.
    pub(super) tokenizer: Option<Tokenizer>,
    /// The rows of the table of tokens.
    pub(super) rows: usize,
    /// The facts that a reader of the loss needs.
    pub(super) about: String,
}

impl Vocabulary {
    /// Checks that texts of `length` tokens fit into the context of a model.
    pub(super) fn check_context(&self, length: usize, context: usize) -> Result<(), TrainError> {
        match length <= context {
            true => Ok(()),
            false => Err(TrainError::Setup(format!(
                "model.context = {length}: the published model has {context} positions"
            ))),
        }
    }
}

impl TextSettings {
    /// Checks the relations of the settings.
    pub(super) fn check(&self, relations: &mut Relations<'_>) {
        for (key, size) in [("model.context", self.context), ("model.texts", self.texts)] {
            relations.positive(key, size as u64);
        }
        let Self { stride, context, .. } = *self;
        let relation = format!("model.stride = {stride}: windows of {context} tokens would leave tokens out");
        relations.require(stride <= context, "model.stride", relation);
    }

    /// Returns the choice of the settings: a published model has a tokenizer of its own.
    pub(super) fn choice(&self) -> TokenizerChoice {
        tokenizer_choice(&self.tokenizer, &self.published)
    }

    /// Opens the tokenizer, and the texts if it follows from them.
    pub(super) fn vocabulary(&self, config: &Config) -> Result<Vocabulary, TrainError> {
        let (tokenizer, about) = match self.choice() {
            TokenizerChoice::File(path) => (Some(Tokenizer::open(path)?), None),
            TokenizerChoice::Bytes => (Some(Tokenizer::bytes()), None),
            _ if config.data.path.is_empty() && !self.published.is_empty() => (None, None),
            _ if config.data.path.is_empty() => {
                let entropy = SentencesDataset::entropy(self.context);
                let about = format!("words of generated sentences, whose entropy is {entropy:.4}");
                (Some(Tokenizer::words(SentencesDataset::words())?), Some(about))
            }
            _ => (self.corpus(config)?.tokenizer().cloned(), None),
        };
        let known = tokenizer.as_ref().map(Tokenizer::vocab);
        let rows = match (known, self.vocab) {
            (Some(known), 0) => known,
            (Some(known), rows) if rows < known => {
                let name = tokenizer.as_ref().map_or("", Tokenizer::name);
                return Err(TrainError::Setup(format!(
                    "model.config: a vocabulary of {rows}, but the tokenizer {name} has {known} tokens"
                )));
            }
            (None, 0) => {
                return Err(TrainError::Setup(format!(
                    "{}: no tokenizer.json in its folder; set model.tokenizer to one, or model.config to a file with the vocab_size",
                    config.data.path
                )));
            }
            (_, rows) => rows,
        };
        let about =
            about.map_or_else(|| format!("{rows} different tokens"), |about| format!("{rows} {about}"));
        Ok(Vocabulary { tokenizer, rows, about })
    }

    /// Opens the texts. Ranks of a process share them.
    pub(super) fn corpus(&self, config: &Config) -> Result<Arc<Corpus>, TrainError> {
        static NEWEST: Newest<CorpusKey, Corpus> = Newest::new();
        let path = PathBuf::from(&config.data.path);
        let changed = changed(&path);
        NEWEST.get(CorpusKey { path, tokenizer: self.choice(), changed }, |key| {
            let settings = CorpusConfig { tokenizer: key.tokenizer.clone(), ..CorpusConfig::default() };
            Ok(Corpus::open(&key.path, &settings)?)
        })
    }

    /// Opens the batches of a split.
    pub(super) fn open(&self, config: &Config, split: Split) -> Result<Arc<dyn BatchSource>, TrainError> {
        let context = self.context;
        if config.data.path.is_empty() {
            let texts = if split == Split::Train { self.texts } else { TEST_TEXTS };
            let sentences = SentencesDataset::new(SentencesConfig {
                split,
                texts,
                length: context,
                seed: config.train.seed,
            })?;
            if let Some(tokenizer) = self.vocabulary(config)?.tokenizer {
                check_generated(&tokenizer, SentencesDataset::words())?;
            }
            let length = PadTo::Fixed(context);
            let collation =
                SequenceCollation::new(SequenceConfig { padding: 0, length, predict_next: true })?;
            return Ok(Arc::new(CollatedDataset::new(Arc::new(sentences), collation)));
        }
        let vocabulary = self.vocabulary(config)?;
        let documents = match self.apart {
            true => DocumentBorders::Apart {
                end: vocabulary.tokenizer.and_then(|tokenizer| tokenizer.end_of_text()),
            },
            false => DocumentBorders::Joined,
        };
        let stride = match (split, self.stride) {
            (Split::Train, _) | (Split::Test, 0) => context,
            (Split::Test, stride) => stride,
        };
        let name = format!("{}/{split}", config.data.path);
        let parts = self.corpus(config)?.parts(split).to_vec();
        let has_index = parts.iter().any(|part| part.stream.documents().is_some());
        if documents == (DocumentBorders::Apart { end: None }) && !has_index {
            return Err(TrainError::Setup(format!(
                "model.apart: nothing marks the documents of {}: its tokenizer has no token that ends a text",
                config.data.path
            )));
        }
        let windows = TokenWindows::new(name, parts, WindowsConfig { context, stride, documents })?;
        windows.check_tokens(vocabulary.rows)?;
        Ok(Arc::new(CollatedDataset::new(Arc::new(windows), WindowCollation::new(context))))
    }
}

/// Returns the choice of a tokenizer by a name or a path, or else of that in the folder of a published model.
pub(super) fn tokenizer_choice(tokenizer: &str, published: &str) -> TokenizerChoice {
    let Ok(choice) = tokenizer.parse();
    if choice != TokenizerChoice::Default || published.is_empty() {
        return choice;
    }
    let path = PathBuf::from(published);
    let folder = if path.is_dir() { Some(path.as_path()) } else { path.parent() };
    let has = |folder: &Path| FILES.iter().any(|name| folder.join(name).is_file());
    folder.filter(|folder| has(folder)).map_or(choice, |folder| TokenizerChoice::File(folder.to_owned()))
}

/// Checks that the words of generated texts are the tokens of a tokenizer that the settings name.
pub(super) fn check_generated(tokenizer: &Tokenizer, words: &[&str]) -> Result<(), TrainError> {
    match words.iter().zip(0_u32..).find(|(word, id)| tokenizer.token_named(word) != Some(*id)) {
        None => Ok(()),
        Some((word, id)) => Err(TrainError::Setup(format!(
            "model.tokenizer: {} is no tokenizer of generated sentences, whose token {id} is {word:?}; name texts by data.path",
            tokenizer.name()
        ))),
    }
}

/// The identity of opened texts.
#[derive(Debug, PartialEq, Eq)]
struct CorpusKey {
    path: PathBuf,
    tokenizer: TokenizerChoice,
    changed: Option<SystemTime>,
}
