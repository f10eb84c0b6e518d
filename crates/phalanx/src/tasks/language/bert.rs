//! BERT, trained to restore masked tokens.

use std::sync::Arc;

use phalanx_config::Config;
use phalanx_data::{BatchSource, CollatedDataset, PadTo, SentencesConfig, SentencesDataset, Split};
use phalanx_models::{BertConfig, BertMasked};
use phalanx_tensor::Value;
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_text::{MaskedCollation, MaskedTexts, MaskingConfig, SequenceLengths, TokenBlocks};
use phalanx_trainer::engine::{
    Setup, StepInput, TaskSpec, TextLength, TextUse, TrainError, Training, TransformersModels,
};

use super::ROWS;
use super::encoder::{EncoderKeys, EncoderVocabulary, check_context, columns, input};
use super::filling;
use super::judging::{PredictedTokens, judge_logits};
use super::settings::{LanguageSettings, keeping_files};
use super::text::{Vocabulary, check_generated};

/// Generated test texts.
const TEST_TEXTS: usize = 500;

phalanx_config::settings! {
    /// The settings of a BERT that restores masked tokens.
    pub(in crate::tasks) struct BertSettings {
        /// The share of the tokens of a text that are to be restored, other ones in each epoch.
        masked: f64 = 0.15;
        flatten encoder: EncoderKeys;
    }
}

/// The models of transformers.
const TRANSFORMERS: TransformersModels = TransformersModels {
    types: &["bert"],
    architecture: Some("BertForMaskedLM"),
    loader: "AutoModelForMaskedLM",
    pipeline: "fill-mask",
    command: "write FOLDER --prompt \"The [MASK] of a model.\"",
    length: TextLength::WHOLE,
};

impl BertSettings {
    fn tokens(&self, config: &Config) -> Result<EncoderVocabulary, TrainError> {
        let texts = self.encoder.texts(self.sizes()?.vocab);
        self.encoder.vocabulary(config, || Ok(texts.corpus(config)?.tokenizer().cloned()))
    }

    fn open(&self, config: &Config, split: Split) -> Result<Arc<dyn BatchSource>, TrainError> {
        let vocabulary = self.tokens(config)?;
        // Two tokens are around a text.
        let length = self.encoder.context - 2;
        if config.data.path.is_empty() {
            let texts = if split == Split::Train { self.encoder.texts } else { TEST_TEXTS };
            let seed = config.train.seed;
            check_generated(&vocabulary.tokenizer, SentencesDataset::words())?;
            let sentences =
                SentencesDataset::new(SentencesConfig { split, texts, length: length.max(2) - 1, seed })?;
            return self.hidden(sentences, &vocabulary, seed);
        }
        let parts = self.encoder.texts(vocabulary.rows).corpus(config)?.parts(split).to_vec();
        let blocks = TokenBlocks::new(format!("{}/{split}", config.data.path), parts, length)?;
        blocks.check_tokens(vocabulary.rows)?;
        self.hidden(blocks, &vocabulary, config.train.seed)
    }

    fn hidden(
        &self,
        texts: impl SequenceLengths + 'static,
        vocabulary: &EncoderVocabulary,
        seed: u64,
    ) -> Result<Arc<dyn BatchSource>, TrainError> {
        let config = MaskingConfig { share: self.masked, seed };
        let texts = MaskedTexts::new(texts, &vocabulary.tokenizer, vocabulary.special, config)?;
        let collation = MaskedCollation::new(PadTo::Fixed(self.encoder.context), vocabulary.special.padding);
        Ok(Arc::new(CollatedDataset::new(Arc::new(texts), collation)))
    }
}

impl LanguageSettings for BertSettings {
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

    fn json(&self, _: &Config, sizes: &BertConfig) -> Result<serde_json::Value, TrainError> {
        Ok(sizes.to_json())
    }
}

/// Returns the task of BERT with masked tokens.
pub(in crate::tasks) fn spec() -> TaskSpec<BertSettings> {
    let about = "Language model: BERT, which restores masked tokens of texts or of generated sentences";
    keeping_files(TaskSpec::new("bert", about, build))
        .data(BertSettings::open)
        .transformers(TRANSFORMERS)
        .validate(|settings, _, relations| {
            settings.encoder.check(relations);
            let share = settings.masked;
            let relation = format!("model.masked = {share}: it must be above 0 and at most 1");
            relations.require(share > 0.0 && share <= 1.0, "model.masked", relation);
        })
}

fn build(setup: &mut Setup<'_>, settings: &BertSettings) -> Result<Training<BertMasked>, TrainError> {
    let tokens = settings.tokens(setup.config())?;
    let config = BertConfig { vocab: tokens.rows, ..settings.sizes()? };
    check_context(settings.encoder.context, &config)?;
    setup.cut_by(|| config.tensor_plan())?;
    let model = setup.model(|scope| BertMasked::new(scope, &config))?;
    let BertConfig { layers, width, heads, context, vocab, .. } = config;
    let description = format!(
        "bert of {layers} layers of {width} with {heads} heads for {context} of {vocab} different tokens, {:.0} % to restore",
        100.0 * settings.masked
    );
    let classes = tokens.tokenizer.vocab();
    let options = CrossEntropyOptions {
        classes: (classes < tokens.rows).then_some(classes),
        ..CrossEntropyOptions::default()
    };
    let context = settings.encoder.context;
    Ok(Training::new(description, model)
        .counts("restored tokens")
        .loss(move |model, step| loss(model, step, options))
        .evaluate(["loss", "accuracy"], move |model, step| evaluate(model, step, options))
        .derive(["perplexity"], |means, _| vec![means[0].exp()])
        .write(move |model, tape, writing, _| filling::fill(model, &tokens, context, tape, writing))
        .text_use(TextUse::Fill)
        .names_of(BertConfig::published_name)
        .shape_advice("bert.embeddings.word_embeddings", ROWS))
}

/// The places of the tokens to restore, their tokens and their weights.
struct Hidden {
    places: Vec<u32>,
    labels: Vec<u32>,
    weights: Vec<f32>,
}

impl Hidden {
    fn of(step: &StepInput<'_>) -> Result<Self, TrainError> {
        let columns = columns(step)?;
        let labels = columns.of(&step.classes("targets")?);
        let weights = columns.of(&step.weights_of_places("mask")?);
        step.tape.backend().branch(weights.iter().filter(|weight| **weight > 0.0).count() as u64)?;
        let all = (0_u32..).zip(labels).zip(weights).filter(|(_, weight)| *weight > 0.0);
        let mut hidden = Self { places: Vec::new(), labels: Vec::new(), weights: Vec::new() };
        for ((place, label), weight) in all {
            hidden.places.push(place);
            hidden.labels.push(label);
            hidden.weights.push(weight);
        }
        Ok(hidden)
    }

    fn targets(&self, over: LossDivisor) -> RowTargets<'_> {
        RowTargets { labels: (&self.labels).into(), weights: Some(&self.weights), over }
    }
}

/// Computes the mean over the hidden tokens of the whole batch of −log p of the original.
fn loss(model: &BertMasked, step: &StepInput<'_>, options: CrossEntropyOptions) -> Result<Value, TrainError> {
    let hidden = Hidden::of(step)?;
    let states = model.states_at(step.tape, &input(step)?, &hidden.places)?;
    Ok(model.loss(step.tape, &states, &hidden.targets(LossDivisor::Sum(step.sum)), options)?)
}

/// Adds up −log p of the hidden tokens, and those whose most probable token is the original.
fn evaluate(
    model: &BertMasked,
    step: &StepInput<'_>,
    options: CrossEntropyOptions,
) -> Result<[f64; 2], TrainError> {
    let hidden = Hidden::of(step)?;
    let states = model.states_at(step.tape, &input(step)?, &hidden.places)?;
    let logits = model.logits(step.tape, &states)?;
    let tokens = PredictedTokens { labels: &hidden.labels, weights: &hidden.weights };
    judge_logits(step, &logits, &tokens, options)
}
