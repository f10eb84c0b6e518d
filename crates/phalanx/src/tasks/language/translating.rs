//! Translations by a model, and their comparison with references.

use candle_core::{Device, Tensor};
use phalanx_models::{
    BeamOptions, GenerationOptions, Prompt, Sampling, SourceTexts, TranslationSource, Translator,
    beam_search, generate,
};
use phalanx_tensor::{Tape, Value};
use phalanx_text::{BleuCounts, Side};
use phalanx_trainer::engine::{StepInput, TokenChoice, TrainError, Writing, WrittenPart, WrittenText};

use super::columns::Columns;
use super::pairs::Pairs;

/// The comparison of translations with their references.
pub(super) struct Judgement {
    /// The counts of BLEU.
    pub(super) bleu: BleuCounts,
    /// Texts that are their references.
    pub(super) right: f64,
    /// All texts.
    pub(super) texts: f64,
}

/// Returns the source texts of a batch, up to the longest.
pub(super) fn source(step: &StepInput<'_>) -> Result<SourceTexts, TrainError> {
    let longest = step.classes("lengths")?.into_iter().max().unwrap_or(0) as usize;
    let tokens = Columns::up_to(step, "source", longest)?.value(step, "source")?;
    Ok(SourceTexts { tokens, lengths: Value::constant(step.batch.tensor("lengths")?.clone()) })
}

/// Translates the texts of a test batch, each token the most probable one, and compares them with their references.
pub(super) fn judge(
    model: &Translator,
    pairs: &Pairs,
    context: usize,
    step: &StepInput<'_>,
) -> Result<Judgement, TrainError> {
    let source = source(step)?;
    let texts = step.batch.len();
    let read = TranslationSource::read(model, step.tape, &source)?;
    // Ranks that hold parts of the parameters gather them together, so all take the same number of steps.
    let together = step.tape.session().listener.is_some();
    let rows = vec![Prompt { tokens: vec![pairs.special.start], sample: 0 }; texts];
    let options = GenerationOptions {
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_tokens: context - 1,
        end: Some(pairs.special.end),
        vocab: pairs.written_vocab(),
        cached: true,
        stops_early: !together,
    };
    let written = generate(&read, step.tape, &rows, &options, &mut |_, _| Ok(()))?;
    let (targets, mask) = (step.classes("targets")?, step.weights_of_places("mask")?);
    let columns = targets.len() / texts.max(1);
    let mut judged = Judgement { bleu: BleuCounts::default(), right: 0.0, texts: 0.0 };
    for (row, written) in written.iter().enumerate() {
        let places = row * columns..(row + 1) * columns;
        let reference: Vec<u32> = targets[places.clone()]
            .iter()
            .zip(&mask[places])
            .filter(|(token, weight)| **weight > 0.0 && **token != pairs.special.end)
            .map(|(token, _)| *token)
            .collect();
        let (translation, reference) =
            (pairs.tokenizer.decode(written)?, pairs.tokenizer.decode(&reference)?);
        judged.bleu.add(&translation, &reference);
        judged.right += f64::from(u8::from(translation == reference));
        judged.texts += 1.0;
    }
    Ok(judged)
}

/// Translates the texts of a request.
pub(super) fn translate(
    model: &Translator,
    pairs: &Pairs,
    context: usize,
    tape: &Tape,
    (writing, take): (&Writing, &mut dyn FnMut(WrittenPart<'_>)),
) -> Result<Vec<WrittenText>, TrainError> {
    let sources = encode(pairs, &writing.prompts, context)?;
    let most = writing.max_tokens.min(context - 1);
    match writing.choice {
        TokenChoice::Sample { temperature, top_k, top_p, repetition_penalty } => {
            let sampling = Sampling { temperature, top_k, top_p, repetition_penalty, seed: writing.seed };
            let options = GenerationOptions {
                sampling,
                max_tokens: most,
                end: Some(pairs.special.end),
                vocab: pairs.written_vocab(),
                cached: writing.cached,
                stops_early: true,
            };
            sampled(model, pairs, tape, (&sources, writing.samples), &options, take)
        }
        TokenChoice::Beams { width, length_penalty } => {
            let options = BeamOptions {
                width: width.max(writing.samples),
                length_penalty,
                max_tokens: most,
                end: Some(pairs.special.end),
                vocab: pairs.written_vocab(),
            };
            let mut all = Vec::new();
            for (prompt, source) in sources.iter().enumerate() {
                let read = TranslationSource::read(model, tape, &rows(std::slice::from_ref(source), pairs)?)?;
                let beams = beam_search(&read, tape, &[pairs.special.start], &options)?;
                for (sample, beam) in beams.into_iter().take(writing.samples).enumerate() {
                    let text = pairs.tokenizer.decode(&beam.tokens)?;
                    take(WrittenPart { prompt, sample, text: &text });
                    let tokens = beam.tokens.len();
                    all.push(WrittenText { prompt, sample, text, tokens, score: Some(beam.score) });
                }
            }
            Ok(all)
        }
    }
}

/// Encodes texts with their ends.
fn encode(pairs: &Pairs, texts: &[String], context: usize) -> Result<Vec<Vec<u32>>, TrainError> {
    let mut all = pairs.tokenizer.encode_all(Side::Source, texts)?;
    for (text, tokens) in texts.iter().zip(&mut all) {
        tokens.push(pairs.special.end);
        if tokens.len() > context {
            let length = tokens.len();
            return Err(TrainError::Setup(format!(
                "the text {:?} has {length} tokens with its end, and the model's context is {context}; cut it into sentences",
                text.chars().take(40).collect::<String>()
            )));
        }
    }
    Ok(all)
}

/// Returns texts as the rows of an array.
fn rows(texts: &[Vec<u32>], pairs: &Pairs) -> Result<SourceTexts, TrainError> {
    let length = texts.iter().map(Vec::len).max().unwrap_or(0);
    let padded = texts.iter().flat_map(|text| {
        text.iter().copied().chain(std::iter::repeat_n(pairs.special.padding, length - text.len()))
    });
    let tokens = Tensor::from_vec(padded.collect::<Vec<u32>>(), (texts.len(), length), &Device::Cpu)?;
    let lengths: Vec<u32> = texts.iter().map(|text| text.len() as u32).collect();
    let lengths = Tensor::from_vec(lengths, texts.len(), &Device::Cpu)?;
    Ok(SourceTexts { tokens: Value::constant(tokens), lengths: Value::constant(lengths) })
}

/// The texts that are translated together.
const TOGETHER: usize = 64;

/// Draws `samples` translations of each text, some texts at a time.
fn sampled(
    model: &Translator,
    pairs: &Pairs,
    tape: &Tape,
    (sources, samples): (&[Vec<u32>], usize),
    options: &GenerationOptions,
    take: &mut dyn FnMut(WrittenPart<'_>),
) -> Result<Vec<WrittenText>, TrainError> {
    let mut all = Vec::with_capacity(sources.len() * samples);
    for (number, sources) in sources.chunks(TOGETHER).enumerate() {
        let texts: Vec<Vec<u32>> =
            sources.iter().flat_map(|text| std::iter::repeat_n(text.clone(), samples)).collect();
        let read = TranslationSource::read(model, tape, &rows(&texts, pairs)?)?;
        let prompts: Vec<Prompt> = (0..texts.len())
            .map(|row| Prompt { tokens: vec![pairs.special.start], sample: (row % samples) as u64 })
            .collect();
        let written = generate(&read, tape, &prompts, options, &mut |_, _| Ok(()))?;
        for (row, tokens) in written.iter().enumerate() {
            let (prompt, sample) = (number * TOGETHER + row / samples, row % samples);
            let text = pairs.tokenizer.decode(tokens)?;
            take(WrittenPart { prompt, sample, text: &text });
            all.push(WrittenText { prompt, sample, text, tokens: tokens.len(), score: None });
        }
    }
    Ok(all)
}
