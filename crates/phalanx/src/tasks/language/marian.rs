//! Translation by encoder and decoder, in the layout of published Marian models.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use phalanx_config::{Config, Relations};
use phalanx_data::{BatchSource, CollatedDataset, DataError, PadTo, PairedSentences, Split};
use phalanx_models::{TranslationConfig, TranslationLayout, TranslationTokens, Translator};
use phalanx_tensor::Value;
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_text::{
    BleuCounts, Languages, MARIAN_FILES, PairCollation, PairTokens, TOKENIZER_FILE, TokenPairs,
    TranslationTokenizer,
};
use phalanx_trainer::engine::{
    KeptFile, Setup, StepInput, TaskSpec, TextLength, TextUse, TrainError, Training, TransformersModels,
    number,
};

use super::columns::Columns;
use super::pairs::{Pairs, PairsKey};
use super::settings::{LanguageSettings, keeping_config};
use super::text::{Vocabulary, check_generated, tokenizer_choice};
use super::translating;
use super::{ROWS, published};

/// Generated test pairs.
const TEST_TEXTS: usize = 500;

/// Rows are padded to a multiple of this length, so that few shapes occur.
const ROUNDED: usize = 8;

/// The models of transformers.
const TRANSFORMERS: TransformersModels = TransformersModels {
    types: &["marian"],
    architecture: None,
    loader: "AutoModelForSeq2SeqLM",
    pipeline: "translation",
    command: "translate FOLDER \"A text.\"",
    length: TextLength::WHOLE,
};

phalanx_config::settings! {
    /// The settings of a translation model.
    pub(in crate::tasks) struct MarianSettings {
        /// The layers of the encoder, and as many of the decoder.
        layers: usize = 2;
        /// Features of a token's state.
        width: usize = 128;
        /// Attention heads; they divide the width.
        heads: usize = 4;
        /// Features between the two layers of a feed-forward part; 0 = four times the width.
        inner: usize = 0;
        /// The longest text of either side, in tokens with the end; longer pairs are left out.
        context: usize = 64;
        /// Probability that an element of the embeddings, of attention weights, or of what a layer adds, is set to zero in
        /// training.
        dropout: f64 = 0.1;
        /// Probability that cross-entropy takes from the true token and spreads over all.
        label_smoothing: f64 = 0.1;
        /// The language of the source, as keys, columns or endings of the data (`data.path`) name it.
        source: String = "en".to_owned();
        /// The language of the translations.
        target: String = "de".to_owned();
        /// The test texts are translated in evaluations, for BLEU and the share of those that are right.
        bleu: bool = true;
        /// The `config.json` or the folder of a published model: its sizes are in place of `layers` to `inner`. Its weights are read by
        /// `model.weights`.
        config: String = String::new();
        /// The tokens of both languages: `characters`, `bytes`, or the file or folder of a tokenizer. Empty: the `tokenizer.json` in
        /// the folder of the data, or else `pieces` pieces that are learned from the training texts.
        tokenizer: String = String::new();
        /// The number of pieces to learn where there is no tokenizer.
        pieces: usize = 6000;
        /// Generated training pairs, if there is no `data.path`.
        texts: usize = 20_000;
    }
}

impl MarianSettings {
    fn check(&self, relations: &mut Relations<'_>) {
        for (key, size) in [
            ("model.layers", self.layers),
            ("model.width", self.width),
            ("model.heads", self.heads),
            ("model.texts", self.texts),
        ] {
            relations.positive(key, size as u64);
        }
        let Self { heads, width, context, pieces, .. } = *self;
        let relation = format!("model.heads = {heads}: {heads} heads do not divide a width of {width}");
        relations.require(heads == 0 || width.is_multiple_of(heads), "model.heads", relation);
        let relation = format!("model.context = {context}: a text and its end need at least 2");
        relations.require(context > 1, "model.context", relation);
        let relation = format!("model.pieces = {pieces}: at least 300, of which 256 are bytes");
        relations.require(pieces >= 300, "model.pieces", relation);
        relations.fraction("model.dropout", self.dropout);
        relations.fraction("model.label_smoothing", self.label_smoothing);
    }

    /// Opens the pairs and their tokenizer.
    fn pairs(&self, config: &Config) -> Result<Arc<Pairs>, TrainError> {
        let path = PathBuf::from(&config.data.path);
        let languages = Languages { source: self.source.clone(), target: self.target.clone() };
        let tokenizer = tokenizer_choice(&self.tokenizer, &self.config);
        Pairs::shared(PairsKey { path, tokenizer, languages, pieces: self.pieces })
    }

    fn open(&self, config: &Config, split: Split) -> Result<Arc<dyn BatchSource>, TrainError> {
        let pairs = self.pairs(config)?;
        let special = pairs.special;
        let data = match &pairs.texts {
            None if !config.data.path.is_empty() => {
                // A model is used without its pairs, but not trained or evaluated.
                let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
                return Err(TrainError::Data(DataError::io(Path::new(&config.data.path), missing)));
            }
            None => {
                let TranslationTokenizer::Shared(tokenizer) = &pairs.tokenizer else {
                    return Err(TrainError::Setup(format!(
                        "data.path is empty: the tokenizer {} is not that of generated sentences",
                        pairs.tokenizer.name()
                    )));
                };
                check_generated(tokenizer, &PairedSentences::words())?;
                let texts = if split == Split::Train { self.texts } else { TEST_TEXTS };
                let sentences = PairedSentences::new(split, texts, config.train.seed)?;
                if self.context <= PairedSentences::LONGEST {
                    return Err(TrainError::Setup(format!(
                        "model.context = {}: generated sentences have up to {} words and an end",
                        self.context,
                        PairedSentences::LONGEST
                    )));
                }
                TokenPairs::generated(sentences, special)
            }
            Some(texts) => {
                let name = format!("{}/{split}", config.data.path);
                let fits = pairs.encoded(texts, split, self.context)?;
                if fits.is_empty() {
                    let reason = format!("no pair of at most {} tokens", self.context);
                    return Err(TrainError::Data(DataError::Text { name, reason }));
                }
                TokenPairs::new(name, fits, special)
            }
        };
        let length = PadTo::MultipleUpTo { of: ROUNDED, most: self.context };
        Ok(Arc::new(CollatedDataset::new(Arc::new(data), PairCollation::new(length, special))))
    }
}

impl LanguageSettings for MarianSettings {
    type Sizes = TranslationConfig;

    fn sizes(&self) -> Result<TranslationConfig, TrainError> {
        let inner = if self.inner == 0 { 4 * self.width } else { self.inner };
        let sizes = match self.config.as_str() {
            "" => TranslationConfig {
                vocab: 0,
                context: self.context,
                width: self.width,
                encoder_layers: self.layers,
                decoder_layers: self.layers,
                encoder_heads: self.heads,
                decoder_heads: self.heads,
                encoder_inner: inner,
                decoder_inner: inner,
                layout: TranslationLayout::Marian,
                ..TranslationConfig::default()
            },
            path => published(path, TranslationConfig::from_json)?,
        };
        Ok(TranslationConfig { dropout: self.dropout, ..sizes })
    }

    fn vocabulary(&self, config: &Config) -> Result<Vocabulary, TrainError> {
        let (tokenizer, known) = {
            let pairs = self.pairs(config)?;
            (pairs.tokenizer.clone(), pairs.tokenizer.vocab())
        };
        let rows = match self.sizes()?.vocab {
            0 => known,
            rows if rows < known => {
                return Err(TrainError::Setup(format!(
                    "model.config: a vocabulary of {rows}, but the tokenizer {} has {known} tokens with those of translations",
                    tokenizer.name()
                )));
            }
            rows => rows,
        };
        let tokenizer = match tokenizer {
            TranslationTokenizer::Shared(tokenizer) => Some(tokenizer),
            TranslationTokenizer::Apart(_) => None,
        };
        Ok(Vocabulary { tokenizer, rows, about: format!("{rows} different tokens") })
    }

    fn with_rows(sizes: TranslationConfig, vocab: usize) -> TranslationConfig {
        TranslationConfig { vocab, ..sizes }
    }

    fn json(&self, config: &Config, sizes: &TranslationConfig) -> Result<serde_json::Value, TrainError> {
        let pairs = self.pairs(config)?;
        let mut json = TranslationConfig { tokens: tokens(pairs.special), ..sizes.clone() }.to_json();
        if let TranslationTokenizer::Apart(_) = pairs.tokenizer {
            json["tokenizer_class"] = "MarianTokenizer".into();
        }
        Ok(json)
    }
}

fn tokens(PairTokens { padding, start, end }: PairTokens) -> TranslationTokens {
    TranslationTokens { padding, start, end }
}

/// Returns the task of translation.
pub(in crate::tasks) fn spec() -> TaskSpec<MarianSettings> {
    let about = "Translation: encoder and decoder, on pairs of texts or on generated sentences";
    // One tokenizer, or the three files of a published model: each names all of them.
    let key = "model.tokenizer";
    let names = std::iter::once(TOKENIZER_FILE).chain(MARIAN_FILES);
    let spec = names.fold(TaskSpec::new("marian", about, build), |spec, name| {
        spec.keeps(KeptFile { name, key, is_fixed: true }, move |settings: &MarianSettings, config| {
            let pairs = settings.pairs(config)?;
            let found = pairs.tokenizer.files().into_iter().find(|(known, _)| *known == name);
            Ok(found.map(|(_, contents)| contents.to_vec()))
        })
    });
    keeping_config(spec)
        .data(MarianSettings::open)
        .transformers(TRANSFORMERS)
        .validate(|settings, _, relations| settings.check(relations))
}

fn build(setup: &mut Setup<'_>, settings: &MarianSettings) -> Result<Training<Translator>, TrainError> {
    let vocabulary = settings.vocabulary(setup.config())?;
    let pairs = settings.pairs(setup.config())?;
    let sizes = settings.built(&vocabulary)?;
    if !settings.config.is_empty() && sizes.tokens != tokens(pairs.special) {
        let TranslationTokens { padding, start, end } = sizes.tokens;
        return Err(TrainError::Setup(format!(
            "model.config: padding {padding}, start {start} and end {end}, but the tokenizer {} has {:?}",
            pairs.tokenizer.name(),
            pairs.special
        )));
    }
    let config = TranslationConfig { tokens: tokens(pairs.special), ..sizes };
    if settings.context > config.context {
        return Err(TrainError::Setup(format!(
            "model.context = {}: the published model has {} positions",
            settings.context, config.context
        )));
    }
    setup.cut_by(|| config.tensor_plan())?;
    let model = setup.model(|scope| Translator::new(scope, &config))?;
    let TranslationConfig { encoder_layers, decoder_layers, width, encoder_heads, .. } = config;
    let description = format!(
        "marian of {encoder_layers} + {decoder_layers} layers of {width} with {encoder_heads} heads for {}",
        vocabulary.about
    );
    let classes = pairs.tokenizer.vocab();
    let classes = (classes < vocabulary.rows).then_some(classes);
    let options = CrossEntropyOptions {
        classes,
        smoothing: settings.label_smoothing,
        ..CrossEntropyOptions::default()
    };
    let plain = CrossEntropyOptions { smoothing: 0.0, ..options };
    let training = Training::new(description, model)
        .counts("target tokens")
        .loss(move |model, step| loss(model, step, options))
        .text_use(TextUse::Translate)
        .names_of(TranslationConfig::published_name)
        .shape_advice("model.shared", ROWS);
    let (context, of_writer) = (settings.context, pairs.clone());
    let training = training.write(move |model, tape, writing, take| {
        translating::translate(model, &of_writer, context, tape, (writing, take))
    });
    if !settings.bleu {
        let training =
            training.evaluate(["loss"], move |model, step| Ok([number(&loss(model, step, plain)?)?]));
        return Ok(training.derive(["perplexity"], |means, _| vec![means[0].exp()]));
    }
    let names = ["loss"].into_iter().chain(COUNTS);
    Ok(training
        .evaluate(names, move |model, step| {
            let loss = number(&loss(model, step, plain)?)?;
            let judged = translating::judge(model, &pairs, context, step)?;
            let counts = judged.bleu.numbers().into_iter().chain([judged.right, judged.texts]);
            Ok(std::iter::once(loss).chain(counts).collect::<Vec<f64>>())
        })
        .hide(COUNTS.len())
        .derive(["perplexity", "bleu", "right"], derived))
}

/// The numbers that BLEU and the share of right texts follow from.
const COUNTS: [&str; 12] = [
    "matches_1",
    "matches_2",
    "matches_3",
    "matches_4",
    "ngrams_1",
    "ngrams_2",
    "ngrams_3",
    "ngrams_4",
    "translated_words",
    "reference_words",
    "right_texts",
    "texts",
];

/// Derives perplexity, BLEU and the share of right texts.
fn derived(means: &[f64], weight: f64) -> Vec<f64> {
    let mut numbers = [0.0; 10];
    numbers.iter_mut().zip(&means[1..]).for_each(|(number, mean)| *number = (mean * weight).round());
    vec![
        means[0].exp(),
        BleuCounts::of_numbers(&numbers).score(),
        means[11] / means[12].max(f64::MIN_POSITIVE),
    ]
}

/// Computes the mean over the target tokens of the whole batch of −log p, with label smoothing.
fn loss(model: &Translator, step: &StepInput<'_>, options: CrossEntropyOptions) -> Result<Value, TrainError> {
    let source = translating::source(step)?;
    let states = model.encode(step.tape, &source)?;
    let (labels, weights) = (step.classes("targets")?, step.weights_of_places("mask")?);
    let columns = Columns::with_weights(&weights, labels.len() / step.batch.len().max(1));
    let hidden = model.decode(step.tape, &states, &source.lengths, &columns.value(step, "seen")?)?;
    let (labels, weights) = (columns.of(&labels), columns.of(&weights));
    let over = LossDivisor::Sum(step.sum);
    let targets = RowTargets { labels: (&labels).into(), weights: Some(&weights), over };
    Ok(model.loss(step.tape, &hidden, &targets, options)?)
}
