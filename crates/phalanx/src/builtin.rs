//! The program `phalanx`.

use std::sync::Arc;
use std::time::Instant;

use phalanx_cli::{Program, PublishedPictures, PublishedRequest};
use phalanx_tensor::{Context, TensorError};

use crate::diffusers::{DiffusersPipeline, Request};
use crate::studies::STUDIES;
use crate::tasks;

/// Returns the program `phalanx`: the tasks, presets and studies of this crate.
///
/// ```
/// let resolved = phalanx::program().resolve("tiny", &["optim.lr=3e-4".to_owned()]).unwrap();
/// assert_eq!(resolved.config.optim.lr, 3e-4);
///
/// let error = phalanx::program().resolve("tiny", &["train.glbal_batch=8".to_owned()]).unwrap_err();
/// let message = "--set train.glbal_batch=8: unknown key train.glbal_batch; did you mean train.global_batch?";
/// assert_eq!(error.to_string(), message);
/// ```
pub fn program() -> Program {
    let mut program =
        Program::new("phalanx").about("Trains deep-learning models across ranks").published(sample);
    for task in tasks::rows() {
        program = program.task(task);
    }
    for (name, text) in tasks::PRESETS {
        program = program.preset(*name, *text);
    }
    for (name, text) in STUDIES {
        program = program.study(*name, *text);
    }
    program
}

/// Samples from published weights in the layout of Hugging Face.
fn sample(
    request: &PublishedRequest,
    announce: &mut dyn FnMut(&str),
) -> Result<PublishedPictures, Box<dyn std::error::Error + Send + Sync>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let context = Arc::new(Context::from_env(threads)?);
    let pipeline = DiffusersPipeline::open(&request.folder, context, request.precision)?;
    announce(&format!("{}: {}", request.folder.display(), pipeline.describe()));
    let sampler = request.sampler.parse().map_err(|error: TensorError| error)?;
    let wanted = |seed: u64, columns: usize| Request {
        prompts: request.prompts.clone(),
        columns,
        size: request.size,
        sampler,
        steps: request.steps,
        eta: request.eta,
        guidance: request.guidance,
        negative: request.negative.clone(),
        seed,
    };
    let start = Instant::now();
    let pictures = match *request.seeds {
        [seed] => pipeline.draw(&wanted(seed, request.columns))?,
        ref seeds => {
            // A column is the first of its seed.
            let of_seeds = seeds.iter().map(|seed| pipeline.draw(&wanted(*seed, 1)));
            let of_seeds = of_seeds.collect::<Result<Vec<_>, _>>()?;
            let row = |prompt: usize| of_seeds.iter().map(move |pictures| pictures[prompt].clone());
            (0..request.prompts.len()).flat_map(row).collect()
        }
    };
    let size = pipeline.size(&wanted(0, request.columns));
    Ok(PublishedPictures { size, pictures, time: start.elapsed() })
}
