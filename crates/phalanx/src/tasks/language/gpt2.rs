//! GPT-2.

use phalanx_data::Split;
use phalanx_models::{Gpt2, Gpt2Config};
use phalanx_trainer::engine::{Setup, TaskSpec, TrainError, Training};

use super::text::{Text, TextSettings, open};
use super::training;

phalanx_trainer::settings! {
    /// The settings of a GPT-2.
    pub(in crate::tasks) struct Gpt2Settings {
        /// The number of layers.
        layers: usize = 4;
        /// Features of a token's state.
        width: usize = 128;
        /// Attention heads; they divide the width.
        heads: usize = 4;
        /// The longest sequence, in tokens.
        context: usize = 64;
        /// Probability that an element of the embeddings, of attention weights, or of what a layer adds, is set to zero in
        /// training.
        dropout: f64 = 0.1;
        /// A token of a text file (`data.path`) is a byte; else a character.
        bytes: bool = false;
        /// Generated training texts, if there is no `data.path`.
        texts: usize = 100_000;
        /// Generated test texts.
        test_texts: usize = 500;
    }
}

impl Gpt2Settings {
    fn text(&self) -> TextSettings {
        let Self { context, bytes, texts, test_texts, .. } = *self;
        TextSettings { context, bytes, texts, test_texts }
    }
}

/// Returns the task of GPT-2.
pub(in crate::tasks) fn spec() -> TaskSpec<Gpt2Settings> {
    TaskSpec::new("gpt2", "Language model: GPT-2 on a text file or on generated sentences", build)
        .data(|settings, config, split| open(settings.text(), config, split))
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

fn build(setup: &mut Setup<'_>, settings: &Gpt2Settings) -> Result<Training<Gpt2>, TrainError> {
    let text = Text::open(settings.text(), setup.config(), Split::Train)?;
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
    Ok(training(description, model))
}
