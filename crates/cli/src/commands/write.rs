//! `phalanx write`: texts by a trained language model.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use phalanx_tensor::Precision;
use phalanx_trainer::engine::{
    CheckpointChoice, TextUse, TokenChoice, Writing, WrittenPart, WrittenText, WrittenTexts, write_texts,
};
use serde_json::json;

use super::error::CliError;
use super::former_run::former_run_option;
use super::resolve::task_alone;
use super::trained_model::NamedModel;
use crate::Program;
use crate::console::{err, out};

/// Continue texts with a trained language model, or fill in their masked tokens, such as `[MASK]`, with one that was trained to do that.
#[derive(Debug, Args)]
#[command(arg = former_run_option())]
pub(super) struct WriteArgs {
    /// A run's folder, a checkpoint's (`…/checkpoints/step-N`), or an exported folder.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Use the best checkpoint (checkpoint.best) instead of the newest one.
    #[arg(long)]
    best: bool,
    /// A text to continue; several are continued together [default: the beginning of a text].
    #[arg(long = "prompt", value_name = "TEXT")]
    prompts: Vec<String>,
    /// A file whose text is to be continued.
    #[arg(long, value_name = "FILE", conflicts_with = "prompts")]
    prompt_file: Option<PathBuf>,
    /// Continuations of each text, or the number of the most probable fillings.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,
    /// The longest continuation, in tokens.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    #[command(flatten)]
    choice: ChoiceArgs,
    /// The seed of the choices [default: as configured in train.seed].
    #[arg(long)]
    seed: Option<u64>,
    /// f32 or bf16, what products take [default: as configured in train.precision].
    #[arg(long)]
    precision: Option<Precision>,
    /// Compute keys and values of earlier tokens anew for each token.
    #[arg(long)]
    no_cache: bool,
    /// Print a line of JSON for each continuation.
    #[arg(long)]
    json: bool,
}

/// The choice of the next token.
#[derive(Debug, Args)]
struct ChoiceArgs {
    /// Take the most probable token.
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "beams"])]
    greedy: bool,
    /// The divisor of the logits: below 1 is safer, above 1 is wilder [default: 0.8].
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Draw from this number of the most probable tokens only [default: all].
    #[arg(long, value_name = "K", conflicts_with = "beams")]
    top_k: Option<u32>,
    /// Draw from the most probable tokens that together have this probability only [default: 1].
    #[arg(long, value_name = "P", conflicts_with = "beams")]
    top_p: Option<f64>,
    /// The divisor of the logits of tokens that the text has already [default: 1].
    #[arg(long, value_name = "R", conflicts_with = "beams")]
    repetition_penalty: Option<f64>,
    /// Search the most probable continuations by this number of beams.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    beams: Option<u32>,
    /// With --beams: the exponent of the length that scores are divided by; above 0 prefers longer texts [default: 1].
    #[arg(long, value_name = "A", requires = "beams")]
    length_penalty: Option<f64>,
}

impl ChoiceArgs {
    fn choice(&self) -> Result<TokenChoice, CliError> {
        let out_of_range = |option: &str, value: f64, range: &str| {
            Err(CliError::Usage(format!("{option} {value}: expected {range}")))
        };
        let temperature = self.temperature.unwrap_or(TokenChoice::TEMPERATURE);
        let top_p = self.top_p.unwrap_or(1.0);
        let repetition_penalty = self.repetition_penalty.unwrap_or(1.0);
        let length_penalty = self.length_penalty.unwrap_or(1.0);
        if !(temperature.is_finite() && temperature >= 0.0) {
            return out_of_range("--temperature", temperature, "a number from 0");
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return out_of_range("--top-p", top_p, "a number above 0, up to 1");
        }
        if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) {
            return out_of_range("--repetition-penalty", repetition_penalty, "a number above 0");
        }
        if !length_penalty.is_finite() {
            return out_of_range("--length-penalty", length_penalty, "a number");
        }
        Ok(match self.beams {
            Some(width) => TokenChoice::Beams { width: width as usize, length_penalty },
            None => TokenChoice::Sample {
                temperature: if self.greedy { 0.0 } else { temperature },
                top_k: self.top_k.unwrap_or(0) as usize,
                top_p,
                repetition_penalty,
            },
        })
    }
}

impl ChoiceArgs {
    /// The first option that was given.
    fn given(&self) -> Option<&'static str> {
        let all = [
            ("--greedy", self.greedy),
            ("--temperature", self.temperature.is_some()),
            ("--top-k", self.top_k.is_some()),
            ("--top-p", self.top_p.is_some()),
            ("--repetition-penalty", self.repetition_penalty.is_some()),
            ("--beams", self.beams.is_some()),
        ];
        all.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }
}

pub(super) fn run(program: &Program, args: &WriteArgs) -> Result<(), CliError> {
    let choice = args.choice.choice()?;
    let prompts = prompts(args)?;
    let checkpoint = if args.best { CheckpointChoice::Best } else { CheckpointChoice::Newest };
    let NamedModel { model, mut resolved, .. } = NamedModel::open(program, &args.run, checkpoint)?;
    if let Some(precision) = args.precision {
        let value = toml::Value::String(precision.to_string());
        resolved.set_value(&format!("--precision {precision}"), "train.precision", value)?;
    }
    let config = &resolved.config;
    let writing = Writing {
        prompts,
        samples: args.samples as usize,
        max_tokens: args.tokens as usize,
        choice,
        cached: !args.no_cache,
        seed: args.seed.unwrap_or(config.train.seed),
    };
    let task = task_alone(program, config)?;
    let begun = Instant::now();
    // One text is shown while it is written.
    let streams = writing.prompts.len() * writing.samples == 1
        && matches!(choice, TokenChoice::Sample { .. })
        && !args.json;
    let mut stdout = std::io::stdout();
    let (mut prompt, mut was_streamed) = (streams.then_some(writing.prompts[0].as_str()), false);
    let mut take = |part: WrittenPart<'_>| {
        if streams {
            was_streamed = true;
            // A reader that went away, such as `head`, is noticed at the end.
            let begins = prompt.take().unwrap_or_default();
            let _ = write!(stdout, "{begins}{}", part.text).and_then(|()| stdout.flush());
        }
    };
    let uses = [TextUse::Continue, TextUse::Fill];
    let written =
        write_texts(&task, &model, config, (&writing, &uses), &mut take).map_err(CliError::failed)?;
    match (was_streamed, args.json) {
        (true, _) => out(""),
        (false, true) => written.texts.iter().for_each(|text| out(&json_line(&writing, text))),
        (false, false) => print(&writing, &written),
    }
    if let Some(option) = args.choice.given().filter(|_| written.text_use == TextUse::Fill) {
        err(&format!("note: masks are filled with their most probable tokens; {option} has no effect"));
    }
    let tokens: usize = written.texts.iter().map(|text| text.tokens).sum();
    if std::io::stderr().is_terminal() {
        let seconds = begun.elapsed().as_secs_f64();
        let rate = tokens as f64 / seconds.max(1e-9);
        err(&format!(
            "{tokens} tokens in {seconds:.1} s ({rate:.0} tokens/s), weights after step {}",
            model.step
        ));
    }
    Ok(())
}

/// Returns the texts to continue.
fn prompts(args: &WriteArgs) -> Result<Vec<String>, CliError> {
    if let Some(file) = &args.prompt_file {
        let text = phalanx_run::Links::Follow.read_text(file);
        let text =
            text.map_err(|error| CliError::Usage(format!("--prompt-file {}: {error}", file.display())))?;
        return Ok(vec![text]);
    }
    Ok(if args.prompts.is_empty() { vec![String::new()] } else { args.prompts.clone() })
}

fn json_line(writing: &Writing, text: &WrittenText) -> String {
    let mut line = json!({
        "prompt": writing.prompts[text.prompt],
        "sample": text.sample,
        "text": text.text,
        "tokens": text.tokens,
    });
    if let Some(score) = text.score {
        line["score"] = score.into();
    }
    line.to_string()
}

/// Prints several texts, each under a line with its number.
fn print(writing: &Writing, WrittenTexts { texts, text_use }: &WrittenTexts) {
    for (number, text) in texts.iter().enumerate() {
        let score = text.score.map_or_else(String::new, |score| format!(", score {score:.4}"));
        if texts.len() > 1 {
            out(&format!("[{}{score}]", number + 1));
        }
        out(&writing.whole(text, *text_use));
    }
}
