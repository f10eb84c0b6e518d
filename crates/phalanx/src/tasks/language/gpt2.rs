//! GPT-2.

use phalanx_models::{Gpt2, Gpt2Config};
use phalanx_trainer::engine::{Setup, TaskSpec, TrainError, Training};

use super::text::TextSettings;
use super::{TOKENIZER, training};

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
        /// The tokens of texts (`data.path`): `characters`, `bytes`, or the file or folder of a tokenizer. Empty: the `tokenizer.json`
        /// in the folder of the data, or else characters.
        tokenizer: String = String::new();
        /// Rows of the table of tokens; 0 = as many as the tokenizer has.
        vocab: usize = 0;
        /// Documents that share a row do not see each other, and positions begin anew.
        apart: bool = false;
        /// Tokens between the windows of the test split; 0 = the context, so that windows do not overlap.
        stride: usize = 0;
        /// Generated training texts, if there is no `data.path`.
        texts: usize = 100_000;
    }
}

impl Gpt2Settings {
    fn text(&self) -> TextSettings {
        let Self { context, vocab, apart, stride, texts, .. } = *self;
        TextSettings { context, tokenizer: self.tokenizer.clone(), vocab, apart, stride, texts }
    }
}

/// Returns the task of GPT-2.
pub(in crate::tasks) fn spec() -> TaskSpec<Gpt2Settings> {
    TaskSpec::new("gpt2", "Language model: GPT-2 on a text file or on generated sentences", build)
        .data(|settings, config, split| settings.text().open(config, split))
        .keeps(TOKENIZER, |settings, config| settings.text().tokenizer_file(config))
        .validate(|settings, _, relations| {
            for (key, size) in [
                ("model.layers", settings.layers),
                ("model.width", settings.width),
                ("model.heads", settings.heads),
            ] {
                relations.positive(key, size as u64);
            }
            settings.text().check(relations);
            relations.fraction("model.dropout", settings.dropout);
            let (width, heads) = (settings.width, settings.heads);
            let relation = format!("model.heads = {heads}: {heads} heads do not divide a width of {width}");
            relations.require(heads == 0 || width.is_multiple_of(heads), "model.heads", relation);
        })
}

fn build(setup: &mut Setup<'_>, settings: &Gpt2Settings) -> Result<Training<Gpt2>, TrainError> {
    let vocabulary = settings.text().vocabulary(setup.config())?;
    let config = Gpt2Config {
        vocab: vocabulary.rows,
        context: settings.context,
        width: settings.width,
        layers: settings.layers,
        heads: settings.heads,
        inner: 4 * settings.width,
        ..Gpt2Config::default().with_dropout(settings.dropout)
    };
    let model = setup.model(|scope| Gpt2::new(scope, &config))?;
    let Gpt2Settings { layers, width, heads, context, .. } = *settings;
    let about = &vocabulary.about;
    let description =
        format!("gpt2 of {layers} layers of {width} with {heads} heads for {context} of {about}");
    Ok(training(description, model, &vocabulary))
}
