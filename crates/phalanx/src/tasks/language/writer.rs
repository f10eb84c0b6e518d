//! Continuations of texts by a language model.

use phalanx_models::{
    BeamOptions, GenerationOptions, LanguageModel, Prompt, Sampling, beam_search, generate,
};
use phalanx_tensor::{Tape, TensorError};
use phalanx_text::{TextStream, Tokenizer};
use phalanx_trainer::engine::{TokenChoice, TrainError, Writing, WrittenPart, WrittenText};

/// Continues the prompts of a request.
pub(super) fn write(
    model: &dyn LanguageModel,
    tokenizer: &Tokenizer,
    tape: &Tape,
    writing: &Writing,
    take: &mut dyn FnMut(WrittenPart<'_>),
) -> Result<Vec<WrittenText>, TrainError> {
    let prompts = writing.prompts.iter().map(|prompt| encode(model, tokenizer, prompt));
    let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
    match writing.choice {
        TokenChoice::Sample { temperature, top_k, top_p, repetition_penalty } => {
            let sampling = Sampling { temperature, top_k, top_p, repetition_penalty, seed: writing.seed };
            let options = GenerationOptions {
                sampling,
                max_tokens: writing.max_tokens,
                end: tokenizer.end_of_text(),
                vocab: tokenizer.vocab(),
                cached: writing.cached,
                stops_early: true,
            };
            sampled(model, tokenizer, tape, (&prompts, writing.samples), &options, take)
        }
        TokenChoice::Beams { width, length_penalty } => {
            let options = BeamOptions {
                width: width.max(writing.samples),
                length_penalty,
                max_tokens: writing.max_tokens,
                end: tokenizer.end_of_text(),
                vocab: tokenizer.vocab(),
            };
            searched(model, tokenizer, tape, (&prompts, writing.samples), &options)
        }
    }
}

/// Encodes a prompt. An empty one is the end of the text before, or else a line feed or the first token.
fn encode(model: &dyn LanguageModel, tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>, TrainError> {
    let tokens = match prompt {
        "" => {
            let line_feed = || tokenizer.encode("\n").ok().filter(|tokens| tokens.len() == 1);
            let before = tokenizer.end_of_text().map(|end| vec![end]).or_else(line_feed);
            before.unwrap_or_else(|| vec![0])
        }
        prompt => tokenizer.encode(prompt)?,
    };
    let (length, context) = (tokens.len(), model.context());
    if length >= context {
        return Err(TrainError::Setup(format!(
            "the prompt {:?} has {length} tokens, and the model's context is {context}; shorten it",
            prompt.chars().take(40).collect::<String>()
        )));
    }
    Ok(tokens)
}

/// Draws `samples` continuations of each prompt, all at once.
fn sampled(
    model: &dyn LanguageModel,
    tokenizer: &Tokenizer,
    tape: &Tape,
    (prompts, samples): (&[Vec<u32>], usize),
    options: &GenerationOptions,
    take: &mut dyn FnMut(WrittenPart<'_>),
) -> Result<Vec<WrittenText>, TrainError> {
    let rows: Vec<Prompt> = prompts
        .iter()
        .flat_map(|tokens| (0..samples as u64).map(|sample| Prompt { tokens: tokens.clone(), sample }))
        .collect();
    // Pieces may depend on those before them, such as the space in front of a word.
    let mut streams: Vec<TextStream> = Vec::with_capacity(rows.len());
    for row in &rows {
        let mut stream = tokenizer.stream();
        for token in &row.tokens {
            stream.push(*token)?;
        }
        stream.finish()?;
        streams.push(stream);
    }
    let mut texts = vec![String::new(); rows.len()];
    let written = generate(model, tape, &rows, options, &mut |row, token| {
        let text = streams[row].push(token).map_err(undecodable)?;
        take(WrittenPart { prompt: row / samples, sample: row % samples, text: &text });
        texts[row].push_str(&text);
        Ok(())
    })?;
    let mut all = Vec::with_capacity(rows.len());
    for (row, (tokens, mut text)) in written.iter().zip(texts).enumerate() {
        let (prompt, sample) = (row / samples, row % samples);
        let rest = streams[row].finish()?;
        take(WrittenPart { prompt, sample, text: &rest });
        text.push_str(&rest);
        all.push(WrittenText { prompt, sample, text, tokens: tokens.len(), score: None });
    }
    Ok(all)
}

/// Searches the `samples` most probable continuations of each prompt.
fn searched(
    model: &dyn LanguageModel,
    tokenizer: &Tokenizer,
    tape: &Tape,
    (prompts, samples): (&[Vec<u32>], usize),
    options: &BeamOptions,
) -> Result<Vec<WrittenText>, TrainError> {
    let mut all = Vec::new();
    for (prompt, tokens) in prompts.iter().enumerate() {
        let beams = beam_search(model, tape, tokens, options)?;
        for (sample, beam) in beams.into_iter().take(samples).enumerate() {
            let before = tokenizer.decode(tokens)?;
            let whole = tokenizer.decode(&[tokens.as_slice(), &beam.tokens].concat())?;
            let text = whole.strip_prefix(&before).map_or_else(|| whole.clone(), str::to_owned);
            all.push(WrittenText {
                prompt,
                sample,
                text,
                tokens: beam.tokens.len(),
                score: Some(beam.score),
            });
        }
    }
    Ok(all)
}

/// Converts the error of a token without a text.
fn undecodable(error: impl std::fmt::Display) -> TensorError {
    TensorError::Shape { op: "write", problem: error.to_string() }
}
