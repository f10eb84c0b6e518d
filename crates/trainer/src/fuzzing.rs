//! Trainings that resume from any checkpoint, for the fuzzer of this workspace. No checkpoint may make them panic.

use std::cell::LazyCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use phalanx_checkpoint::Checkpoint;
use phalanx_collectives::{Algorithm, Communicator, threads};
use phalanx_sharding::{Bucket, CodecKind, CodecSettings, CodecState, MatrixRange, Peers, SumPlacement};
use phalanx_tensor::{Value, loss, nn};

use crate::engine::{Resumable, Setup, StepInput, Task, TaskSpec, TrainError, Training};
use phalanx_config::Catalogue;

phalanx_config::settings! {
    /// Two small networks.
    struct PairSettings {
        /// The number of inputs of each network.
        inputs: usize = 3;
    }
}

/// Two small networks.
struct Pair(nn::Linear, nn::Linear);

impl Pair {
    /// Registers both networks, the first with running statistics.
    fn build(setup: &mut Setup<'_>, settings: &PairSettings) -> Result<Training<Self>, TrainError> {
        let left = setup.network("left", |scope| {
            nn::BatchNorm2d::new(&scope.pp("norm"), 2, nn::BatchNormConfig::default())?;
            nn::Linear::new(&scope.pp("line"), settings.inputs, 2)
        })?;
        let right = setup.network("right", |scope| nn::Linear::new(&scope.pp("line"), settings.inputs, 1))?;
        Ok(Training::new("two small networks", Self(left, right))
            .phase("left", ["left"], |pair, step| Self::distance(&pair.0, step))
            .phase("right", ["right"], |pair, step| Self::distance(&pair.1, step)))
    }

    /// The mean squared error of one network.
    fn distance(line: &nn::Linear, step: &StepInput<'_>) -> Result<Value, TrainError> {
        let (output, target) = (line.forward(step.tape, &step.value("x")?)?, step.value("y")?);
        Ok(loss::mse(step.tape, &output, &target, step.over()?)?)
    }
}

/// The presets: one with averages and a loss scale, and one with as little state as possible.
const PRESETS: [(&str, &str); 2] = [
    (
        "averages",
        "[train]\nsteps = 10\nglobal_batch = 4\nema = 0.9\nprecision = \"f16\"\n[optim]\nkind = \"adamw\"\n",
    ),
    ("momentum", "[train]\nsteps = 10\nglobal_batch = 4\n[optim]\nkind = \"sgd\"\nmomentum = 0.9\n"),
];

thread_local! {
    /// A training of each preset, without data.
    static TRAININGS: LazyCell<Vec<Resumable>> = const { LazyCell::new(trainings) };
    /// A world of one rank.
    static ALONE: Option<Communicator> = threads(1).ok().and_then(|mut all| all.pop());
}

fn trainings() -> Vec<Resumable> {
    let task: Task = TaskSpec::new("pair", "Learns two lines", Pair::build).into();
    let catalogue = Arc::new(Catalogue {
        program: "fuzzed".to_owned(),
        tasks: vec![task.schema().clone()],
        presets: PRESETS.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
    });
    let training = |(name, _): &(&str, &str)| {
        let resolved = catalogue.resolve(Some(name), &[]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let training = Resumable::new(task.clone(), resolved.config, &std::env::temp_dir());
        training.unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    PRESETS.iter().map(training).collect()
}

/// Writes checkpoints of step 3 below `folder`, each into a folder of its own: of each training a plain one, one with state of the
/// rank's own, and one for each codec that keeps state. Returns the folders of the checkpoints.
///
/// # Panics
/// If a checkpoint cannot be written.
pub fn write_checkpoints(folder: &Path) -> Vec<PathBuf> {
    let own = vec![("optimizer.exp_avg.left.line.weight".to_owned(), vec![0.25; 6])];
    let mut extras = vec![(Vec::new(), Vec::new()), (Vec::new(), own)];
    let mut kept = reduce_once(&CodecState::new());
    kept.retain(|kept| !kept.is_empty());
    extras.extend(kept.into_iter().map(|kept| (kept, Vec::new())));
    TRAININGS.with(|all| {
        let cases = all.iter().flat_map(|training| extras.iter().map(move |extra| (training, extra)));
        let write = |(number, (training, extra)): (usize, (&Resumable, &(CodecState, CodecState)))| {
            let saved = training.save(&folder.join(number.to_string()), 3, extra.clone());
            saved.unwrap_or_else(|error| panic!("a checkpoint: {error}")).folder().to_owned()
        };
        cases.enumerate().map(write).collect()
    })
}

/// Resumes each training, and each codec with the state that it finds, from the checkpoint in `folder`.
pub fn resume(folder: &Path) {
    let Ok(checkpoint) = Checkpoint::open(folder) else { return };
    TRAININGS.with(|all| {
        for training in all.iter() {
            let _ = training.resume(&checkpoint);
            if let Ok(kept) = training.kept(&checkpoint)
                && !kept.is_empty()
            {
                reduce_once(&kept);
            }
        }
    });
}

/// Loads `kept` into a codec of each kind, and reduces six gradients. Returns the states of the codecs that accept it.
fn reduce_once(kept: &CodecState) -> Vec<CodecState> {
    let bucket = Bucket { slot: 0, len: 6, matrices: vec![MatrixRange { range: 0..6, rows: 2 }] };
    let of_kind = |alone: &Communicator, kind: CodecKind| {
        let codec = CodecSettings { kind, ..CodecSettings::default() }.codec().ok().flatten()?;
        codec.load_state(kept.clone()).ok()?;
        let mut gradients = [0.5_f32, -1.0, 2.0, 0.0, 3.5, 1e-3];
        let mut peers = Peers::new(alone, Algorithm::Auto);
        codec.reduce(&bucket, gradients.as_mut_slice().into(), SumPlacement::All, &mut peers).ok()?;
        let state = codec.state();
        assert!(state.is_ok(), "a codec that has reduced has no state");
        state.ok()
    };
    ALONE.with(|alone| {
        let alone = alone.iter().flat_map(|alone| CodecKind::ALL.iter().map(move |kind| (alone, *kind)));
        alone.filter_map(|(alone, kind)| of_kind(alone, kind)).collect()
    })
}

#[cfg(test)]
mod tests {
    use phalanx_fuzz_harness::{Reader, check, files};

    use super::*;

    #[test]
    fn resuming_holds_its_limits() {
        let read = |bytes: &[u8]| {
            let place = files::folder();
            let step = place.path().join("step-00000003");
            files::write(bytes, &step);
            resume(&step);
        };
        check(Reader { name: "resumed", read, memory: 48 << 20 }, Vec::new(), 100, files::change);
    }

    #[test]
    fn trainings_resume_from_their_own_checkpoints() {
        let place = files::folder();
        let written = write_checkpoints(place.path());
        assert!(written.len() > 2 * PRESETS.len(), "no codec keeps state");
        let of_each = written.len() / PRESETS.len();
        TRAININGS.with(|all| {
            for (training, written) in all.iter().zip(written.chunks(of_each)) {
                let open = |at: usize| Checkpoint::open(&written[at]).expect("a checkpoint");
                training.resume(&open(0)).expect("the plain one");
                training.resume(&open(1)).expect("the one with own state");
                assert!(!training.kept(&open(2)).expect("state of a codec").is_empty());
            }
        });
    }
}
