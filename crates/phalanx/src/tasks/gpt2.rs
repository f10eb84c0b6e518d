//! GPT-2 on text: a file by characters or bytes, or generated sentences of known entropy.

use std::sync::Arc;

use phalanx_data::{
    BatchSource, CollatedDataset, PadTo, SentencesConfig, SentencesDataset, SequenceCollation,
    SequenceConfig, Split, TextFile, TextFileConfig, TextSample, TextUnit,
};
use phalanx_models::{Gpt2, Gpt2Config, LanguageModel as _, TokenInput};
use phalanx_tensor::Value;
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};

use phalanx_trainer::config::Config;
use phalanx_trainer::engine::{Setup, StepInput, TaskSpec, TrainError, Training, number};

phalanx_trainer::settings! {
    /// The settings of a GPT-2.
    pub(super) struct Gpt2Settings {
        /// The number of layers.
        layers: usize = 4;
        /// Features of a token's state.
        width: usize = 128;
        /// Attention heads; they divide the width.
        heads: usize = 4;
        /// The longest sequence, in tokens.
        context: usize = 64;
        /// Probability that an element of the embeddings, or of what a layer adds, is set to zero in training.
        dropout: f64 = 0.1;
        /// A token of a text file (`data.path`) is a byte; else a character.
        bytes: bool = false;
        /// Generated training texts, if there is no `data.path`.
        texts: usize = 100_000;
        /// Generated test texts.
        test_texts: usize = 500;
    }
}

/// Returns the task of GPT-2.
pub(super) fn spec() -> TaskSpec<Gpt2Settings> {
    TaskSpec::new("gpt2", "Language model: GPT-2 on a text file or on generated sentences", build)
        .data(open)
        .validate(|settings, _, relations| {
            for (key, size) in [
                ("model.layers", settings.layers),
                ("model.width", settings.width),
                ("model.heads", settings.heads),
                ("model.context", settings.context),
                ("model.texts", settings.texts),
                ("model.test_texts", settings.test_texts),
            ] {
                relations.positive(key, size as u64);
            }
            relations.fraction("model.dropout", settings.dropout);
            let (width, heads) = (settings.width, settings.heads);
            let relation = format!("model.heads = {heads}: {heads} heads do not divide a width of {width}");
            relations.require(heads == 0 || width.is_multiple_of(heads), "model.heads", relation);
        })
}

/// The samples of a split: texts of one more token than there are predictions.
enum Text {
    File(TextFile),
    Sentences(SentencesDataset),
}

impl Text {
    fn open(settings: &Gpt2Settings, config: &Config, split: Split) -> Result<Self, TrainError> {
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

    fn vocab(&self) -> usize {
        match self {
            Self::File(file) => file.vocab(),
            Self::Sentences(_) => SentencesDataset::vocab(),
        }
    }

    /// The facts that a reader of the loss needs.
    fn describe(&self, length: usize) -> String {
        match self {
            Self::File(file) => format!("{} different tokens", file.vocab()),
            Self::Sentences(_) => {
                let (vocab, entropy) = (SentencesDataset::vocab(), SentencesDataset::entropy(length));
                format!("{vocab} words of generated sentences, whose entropy is {entropy:.4}")
            }
        }
    }
}

fn open(settings: &Gpt2Settings, config: &Config, split: Split) -> Result<Arc<dyn BatchSource>, TrainError> {
    let length = PadTo::Fixed(settings.context);
    let collation = SequenceCollation::new(SequenceConfig { padding: 0, length, predict_next: true })?;
    Ok(match Text::open(settings, config, split)? {
        Text::File(file) => Arc::new(CollatedDataset::new(Arc::new(file), collation)),
        Text::Sentences(sentences) => Arc::new(CollatedDataset::new(Arc::new(sentences), collation)),
    })
}

fn build(setup: &mut Setup<'_>, settings: &Gpt2Settings) -> Result<Training<Gpt2>, TrainError> {
    let text = Text::open(settings, setup.config(), Split::Train)?;
    let config = Gpt2Config {
        vocab: text.vocab(),
        context: settings.context,
        width: settings.width,
        layers: settings.layers,
        heads: settings.heads,
        inner: 4 * settings.width,
        ..Gpt2Config::default().with_dropout(settings.dropout)
    };
    let model = setup.model(|scope| Gpt2::new(scope, &config))?;
    let Gpt2Settings { layers, width, heads, context, .. } = *settings;
    let about = text.describe(context);
    let description =
        format!("gpt2 of {layers} layers of {width} with {heads} heads for {context} of {about}");
    Ok(Training::new(description, model)
        .loss(loss)
        .evaluate(["loss"], |model, step| Ok([number(&loss(model, step)?)?])))
}

/// The mean over the predictions of the whole batch of −log p of the following token.
fn loss(model: &Gpt2, step: &StepInput<'_>) -> Result<Value, TrainError> {
    let input = TokenInput::new(step.batch.tensor("tokens")?)?;
    let hidden = model.hidden(step.tape, &input)?;
    let (labels, weights) = (step.classes("targets")?, step.weights_of_places("mask")?);
    let over = LossDivisor::Sum(step.sum);
    let targets = RowTargets { labels: (&labels).into(), weights: Some(&weights), over };
    Ok(model.loss(step.tape, &hidden, &targets, CrossEntropyOptions::default())?)
}
