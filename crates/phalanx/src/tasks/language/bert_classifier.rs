//! BERT as a classifier of texts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use candle_core::{Device, Tensor};
use phalanx_config::Config;
use phalanx_data::{BatchSource, CollatedDataset, JudgedSentences, Links, PadTo, SentencesDataset, Split};
use phalanx_models::{BertClassifier, BertConfig, EncoderInput};
use phalanx_tensor::loss::cross_entropy;
use phalanx_tensor::{Tape, Value};
use phalanx_text::{
    LabelKeys, LabelledCollation, LabelledDocuments, LabelledTexts, LabelledTokens, PaddedRows, Segments,
    Tokenizer,
};
use phalanx_trainer::engine::{
    ClassScores, Loss, Setup, StepInput, TaskSpec, TextInput, TextLength, TrainError, Training,
    TransformersModels,
};

use super::encoder::{EncoderKeys, EncoderVocabulary, check_context, generated_classes, input};
use super::newest::{Newest, changed};
use super::settings::{LanguageSettings, keeping_files};
use super::text::{Vocabulary, check_generated};
use super::{CONFIG, ROWS};
use crate::tasks::classifier::accuracy;

/// Of this share of the texts the last one is for testing, where no names tell the splits.
const TEST_PERCENT: u64 = 10;

/// Generated test texts.
const TEST_TEXTS: usize = 1000;

/// Rows are padded to a multiple of this length, so that few shapes occur.
const ROUNDED: usize = 8;

/// The models of transformers.
const TRANSFORMERS: TransformersModels = TransformersModels {
    types: &["bert"],
    architecture: Some("BertForSequenceClassification"),
    loader: "AutoModelForSequenceClassification",
    pipeline: "text-classification",
    command: "predict FOLDER --text \"A text.\"",
    length: TextLength::WHOLE,
};

phalanx_config::settings! {
    /// The settings of a BERT that classifies texts.
    pub(in crate::tasks) struct BertClassifierSettings {
        /// The key of a text, in lines of JSON, or its column in a table.
        text_key: String = "text".to_owned();
        /// The key or the column of a second text, of which the class is, too, such as an answer to a question; empty = one text.
        pair_key: String = String::new();
        /// The key or the column of a text's class.
        class_key: String = "label".to_owned();
        flatten encoder: EncoderKeys;
    }
}

impl BertClassifierSettings {
    /// Reads the texts. Ranks of a process share them.
    fn documents(&self, config: &Config) -> Result<Arc<LabelledDocuments>, TrainError> {
        type Key = (PathBuf, Option<SystemTime>, LabelKeys);
        static NEWEST: Newest<Key, LabelledDocuments> = Newest::new();
        let path = PathBuf::from(&config.data.path);
        let changed = changed(&path);
        let second = Some(self.pair_key.clone()).filter(|key| !key.is_empty());
        let keys = LabelKeys { text: self.text_key.clone(), second, class: self.class_key.clone() };
        NEWEST.get((path, changed, keys), |(path, _, keys)| {
            Ok(LabelledDocuments::open(path, keys, TEST_PERCENT)?)
        })
    }

    fn tokens(&self, config: &Config) -> Result<EncoderVocabulary, TrainError> {
        self.encoder.vocabulary(config, || {
            let path = Path::new(&config.data.path);
            let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
            let file = folder.join(phalanx_text::TOKENIZER_FILE);
            if file.is_file() {
                return Ok(Some(Tokenizer::open(file)?));
            }
            let documents = self.documents(config)?;
            let all = [Split::Train, Split::Test].map(|split| documents.texts(split));
            let texts = all.into_iter().flatten();
            let texts = texts.flat_map(|text| std::iter::once(&text.text).chain(&text.second));
            Ok(Some(Tokenizer::characters_of(texts.map(String::as_str))?))
        })
    }

    /// Returns the names of the classes: those of the data, if they are there, or else those of the published model.
    fn classes(&self, config: &Config) -> Result<Vec<String>, TrainError> {
        if !config.data.path.is_empty() && Path::new(&config.data.path).exists() {
            return Ok(self.documents(config)?.classes().to_vec());
        }
        let path = PathBuf::from(&self.encoder.config);
        let path = if path.is_dir() { path.join(CONFIG.name) } else { path };
        let published = match Links::Follow.read_text(&path) {
            Ok(text) => BertConfig::published_classes(&text)
                .map_err(|error| TrainError::Setup(format!("model.config: {}: {error}", path.display())))?,
            Err(_) => None,
        };
        match published {
            Some(classes) => Ok(classes),
            None if config.data.path.is_empty() => Ok(generated_classes()),
            None => Ok(self.documents(config)?.classes().to_vec()),
        }
    }

    fn open(&self, config: &Config, split: Split) -> Result<Arc<dyn BatchSource>, TrainError> {
        let EncoderVocabulary { tokenizer, special, .. } = self.tokens(config)?;
        let longest = self.encoder.context;
        let texts = if config.data.path.is_empty() {
            let texts = if split == Split::Train { self.encoder.texts } else { TEST_TEXTS };
            check_generated(&tokenizer, SentencesDataset::words())?;
            LabelledTexts::generated(JudgedSentences::new(split, texts, config.train.seed)?, special, longest)
        } else {
            let documents = self.documents(config)?;
            let of_split = documents.texts(split);
            let texts: Vec<String> = of_split.iter().map(|text| text.text.clone()).collect();
            let seconds: Vec<String> = of_split.iter().filter_map(|text| text.second.clone()).collect();
            // Each text has a second one, or none has.
            let mut seconds = tokenizer.encode_all(&seconds)?.into_iter();
            let encoded = tokenizer.encode_all(&texts)?.into_iter().zip(of_split);
            let labelled = encoded.map(|(mut tokens, text)| {
                let second = seconds.next();
                if second.is_none() {
                    tokens.truncate(longest);
                }
                LabelledTokens { tokens, second, class: text.class }
            });
            let name = format!("{}/{split}", config.data.path);
            LabelledTexts::new(name, labelled.collect(), special, longest)
        };
        let collation =
            LabelledCollation::new(PadTo::MultipleUpTo { of: ROUNDED, most: longest }, special.padding);
        Ok(Arc::new(CollatedDataset::new(Arc::new(texts), collation)))
    }
}

impl LanguageSettings for BertClassifierSettings {
    type Sizes = BertConfig;

    fn sizes(&self) -> Result<BertConfig, TrainError> {
        self.encoder.sizes()
    }

    fn vocabulary(&self, config: &Config) -> Result<Vocabulary, TrainError> {
        Ok(self.tokens(config)?.named())
    }

    fn with_rows(sizes: BertConfig, vocab: usize) -> BertConfig {
        BertConfig { vocab, ..sizes }
    }

    fn json(&self, config: &Config, sizes: &BertConfig) -> Result<serde_json::Value, TrainError> {
        Ok(sizes.classifier_to_json(&self.classes(config)?))
    }
}

/// Returns the task of BERT as a classifier of texts.
pub(in crate::tasks) fn spec() -> TaskSpec<BertClassifierSettings> {
    let about = "Classifier: BERT on texts with classes, or on generated sentences";
    keeping_files(TaskSpec::new("bert-classifier", about, build))
        .data(BertClassifierSettings::open)
        .transformers(TRANSFORMERS)
        .validate(|settings, _, relations| settings.encoder.check(relations))
}

fn build(
    setup: &mut Setup<'_>,
    settings: &BertClassifierSettings,
) -> Result<Training<BertClassifier>, TrainError> {
    let tokens = settings.tokens(setup.config())?;
    let classes = settings.classes(setup.config())?;
    let config = BertConfig { vocab: tokens.rows, ..settings.sizes()? };
    check_context(settings.encoder.context, &config)?;
    setup.cut_by(|| config.tensor_plan())?;
    let model = setup.model(|scope| BertClassifier::new(scope, &config, classes.len()))?;
    let BertConfig { layers, width, heads, context, vocab, .. } = config;
    let description = format!(
        "bert of {layers} layers of {width} with {heads} heads for {context} of {vocab} different tokens and {} classes",
        classes.len()
    );
    let longest = settings.encoder.context;
    let pair_key = settings.pair_key.clone();
    if !pair_key.is_empty() && config.types < 2 {
        let problem =
            format!("model.pair_key: the model tells {} segments apart, and pairs have 2", config.types);
        return Err(TrainError::Setup(problem));
    }
    Ok(Training::new(description, model)
        .head(["classifier", "bert.pooler"])
        .loss(loss)
        .measures(["accuracy"])
        .classify(classes, |model, step| {
            Ok(ClassScores::new(model.forward(step.tape, &input(step)?)?, step.classes("labels")?))
        })
        .classify_texts(move |model, tape, texts| {
            check_pairs(&pair_key, texts)?;
            logits(model, &tokens, longest, tape, texts)
        })
        .names_of(BertConfig::published_classifier_name)
        .shape_advice("bert.embeddings.word_embeddings", ROWS))
}

/// Computes the cross-entropy, and the share of texts whose largest logit is that of their class.
fn loss(model: &BertClassifier, step: &StepInput<'_>) -> Result<Loss, TrainError> {
    let logits = model.forward(step.tape, &input(step)?)?;
    let labels = step.classes("labels")?;
    let loss =
        step.mean(&logits, |logits, rows, over| cross_entropy(step.tape, logits, &labels[rows], 0.0, over))?;
    Ok(Loss::new(loss, [accuracy(step, &logits, labels)?]))
}

/// Checks that the texts to classify are of the form that the model was trained on.
fn check_pairs(pair_key: &str, texts: &[TextInput]) -> Result<(), TrainError> {
    match texts.iter().find(|text| text.second.is_none()) {
        Some(text) if !pair_key.is_empty() => Err(TrainError::Setup(format!(
            "{:?} has no second text, and the model was trained on pairs (model.pair_key = {pair_key:?}); add --pair TEXT",
            text.text
        ))),
        _ => Ok(()),
    }
}

/// Computes the logits of texts. Tokens beyond the longest text are left out.
fn logits(
    model: &BertClassifier,
    EncoderVocabulary { tokenizer, special, .. }: &EncoderVocabulary,
    longest: usize,
    tape: &Tape,
    texts: &[TextInput],
) -> Result<Value, TrainError> {
    let firsts: Vec<String> = texts.iter().map(|input| input.text.clone()).collect();
    let seconds: Vec<String> = texts.iter().filter_map(|input| input.second.clone()).collect();
    let mut seconds = tokenizer.encode_all(&seconds)?.into_iter();
    let encoded = tokenizer.encode_all(&firsts)?.into_iter().zip(texts);
    let rows: Vec<Segments> = encoded
        .map(|(first, input)| {
            let second = input.second.as_ref().and_then(|_| seconds.next());
            special.around(&first, second.as_deref(), longest)
        })
        .collect();
    let length = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0);
    let PaddedRows { tokens, types, lengths } = PaddedRows::new(&rows, length, special.padding);
    let value = |numbers: Vec<u32>| {
        Ok::<_, TrainError>(Value::constant(Tensor::from_vec(numbers, (rows.len(), length), &Device::Cpu)?))
    };
    let input = EncoderInput {
        tokens: value(tokens)?,
        types: value(types)?,
        lengths: Value::constant(Tensor::from_vec(lengths, rows.len(), &Device::Cpu)?),
    };
    Ok(model.forward(tape, &input)?)
}
