//! Checkpoints that a training goes on from, with damage behind their checksums, and checkpoints as earlier versions wrote them.

use candle_core::{DType, Device, Tensor};
use phalanx::fuzzing::{Resumable, training};
use phalanx::{Program, Setup, Step, TaskSpec, TrainError, Training, settings};
use phalanx_checkpoint::Checkpoint;
use phalanx_tensor::io::save_safetensors;
use phalanx_tensor::{Value, loss, nn};
use phalanx_trainer::fuzzing;
use serde_json::json;

use super::files::{self, folder};
use super::{Target, tensors};
use crate::mutate;
use crate::random::Random;

/// The index's file.
const INDEX: &str = "checkpoint.json";

/// The folder of the only checkpoint.
const STEP: &str = "step-00000003";

settings! {
    /// Two small networks.
    struct PairSettings {
        /// Numbers that go in.
        inputs: usize = 3;
    }
}

/// Two small networks.
struct Pair(nn::Linear, nn::Linear);

impl Pair {
    /// Registers both, one with statistics.
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

    /// How far one is from what it shall say.
    fn distance(line: &nn::Linear, step: &Step<'_>) -> Result<Value, TrainError> {
        let (output, target) = (line.forward(step.tape, &step.value("x")?)?, step.value("y")?);
        Ok(loss::mse(step.tape, &output, &target, step.over()?)?)
    }
}

/// The presets: one with averages and a scale of the loss, and one with as little as there is.
const PRESETS: [(&str, &str); 2] = [
    (
        "averages",
        "[train]\nsteps = 10\nglobal_batch = 4\nema = 0.9\nprecision = \"f16\"\n[optim]\nkind = \"adamw\"\n",
    ),
    ("momentum", "[train]\nsteps = 10\nglobal_batch = 4\n[optim]\nkind = \"sgd\"\nmomentum = 0.9\n"),
];

thread_local! {
    /// The trainings that go on.
    static TRAININGS: Vec<Resumable> = trainings();
}

/// A training of each preset.
fn trainings() -> Vec<Resumable> {
    let task = TaskSpec::new("pair", "Learns two lines", Pair::build);
    let program = PRESETS
        .iter()
        .fold(Program::new("fuzzed").task(task), |program, (name, text)| program.preset(*name, *text));
    let made = |(name, _): &(&str, &str)| {
        let made = training(&program, name, &std::env::temp_dir());
        made.unwrap_or_else(|error| panic!("a training: {error}"))
    };
    PRESETS.iter().map(made).collect()
}

/// The files of a checkpoint, the index first, as an input.
fn input_of(checkpoint: &Checkpoint) -> Option<Vec<u8>> {
    let names = checkpoint.index().files.iter().map(|file| file.name.as_str());
    let read = |name: &str| Some((name.to_owned(), std::fs::read(checkpoint.folder().join(name)).ok()?));
    let all: Vec<(String, Vec<u8>)> = std::iter::once(INDEX).chain(names).map(read).collect::<Option<_>>()?;
    Some(files::join(all.iter().map(|(name, contents)| (name.as_str(), contents.as_slice()))))
}

/// Checkpoints of each training as it writes them: plain, with what a rank has for itself, and with what codecs keep.
fn resumed() -> Vec<Vec<u8>> {
    let own = vec![("optimizer.exp_avg.left.line.weight".to_owned(), vec![0.25; 6])];
    let mut extras = vec![(Vec::new(), Vec::new()), (Vec::new(), own)];
    extras.extend(fuzzing::kept_by_codecs().into_iter().map(|kept| (kept, Vec::new())));
    let write = |training: &Resumable, extra| {
        let place = folder();
        let saved = training.save(place.path(), 3, extra);
        let saved = saved.unwrap_or_else(|error| panic!("a checkpoint: {error}"));
        input_of(&saved)
    };
    let of_training = |training: &Resumable| -> Vec<Vec<u8>> {
        extras.iter().filter_map(|extra| write(training, extra.clone())).collect()
    };
    TRAININGS.with(|all| all.iter().flat_map(of_training).collect())
}

/// Goes on from a checkpoint by each training, and by each codec.
fn go_on(bytes: &[u8]) {
    let place = folder();
    let step = place.path().join(STEP);
    files::write(bytes, &step);
    let Ok(checkpoint) = Checkpoint::open(&step) else { return };
    TRAININGS.with(|all| {
        for training in all {
            let _ = training.resume(&checkpoint);
            if let Ok(kept) = training.kept(&checkpoint)
                && !kept.is_empty()
            {
                fuzzing::codecs(&kept);
            }
        }
    });
}

/// Changes the index or a file of tensors, and gives the index the lengths and checksums of what there is then; now and then it keeps
/// those that it had.
pub(super) fn sealed(input: &mut Vec<u8>, random: &mut Random) -> bool {
    if random.once_in(5) {
        return files::change(input, random);
    }
    let mut all: Vec<(String, Vec<u8>)> =
        files::split(input).into_iter().map(|(name, contents)| (name, contents.to_vec())).collect();
    if all.is_empty() {
        return false;
    }
    let at = random.below(all.len());
    let contents = &mut all[at].1;
    let by_form = crate::json::change(contents, random) || tensors::header(contents, random);
    if !by_form || random.once_in(3) {
        mutate::bytes(contents, &[0xff; 8], &["\0\0\u{40}\u{7f}", "0", "-1"], random);
    }
    *input = seal(all);
    true
}

/// The input of some files, of which an index has the lengths and checksums.
fn seal(mut all: Vec<(String, Vec<u8>)>) -> Vec<u8> {
    let index = all.iter().position(|(name, _)| name == INDEX);
    let parsed = index.and_then(|at| serde_json::from_slice::<serde_json::Value>(&all[at].1).ok());
    if let (Some(at), Some(mut parsed)) = (index, parsed) {
        let entries = parsed.get_mut("files").and_then(serde_json::Value::as_array_mut);
        for entry in entries.into_iter().flatten() {
            let Some((_, contents)) =
                all.iter().find(|(name, _)| entry.get("name").is_some_and(|known| known == name.as_str()))
            else {
                continue;
            };
            let Some(entry) = entry.as_object_mut() else { continue };
            entry.insert("bytes".to_owned(), contents.len().into());
            for (name, sum) in fuzzing::checksums(contents) {
                if entry.contains_key(name) {
                    entry.insert(name.to_owned(), sum.into());
                }
            }
        }
        all[at].1 = parsed.to_string().into_bytes();
    }
    files::join(all.iter().map(|(name, contents)| (name.as_str(), contents.as_slice())))
}

/// A file of tensors of zeros.
fn zeros(named: &[(&str, &[usize])]) -> Vec<u8> {
    let place = folder();
    let path = place.path().join("a.safetensors");
    let tensor = |(name, shape): &(&str, &[usize])| {
        Some(((*name).to_owned(), Tensor::zeros(*shape, DType::F32, &Device::Cpu).ok()?))
    };
    let tensors: Vec<(String, Tensor)> = named.iter().filter_map(tensor).collect();
    let written = save_safetensors(&path, &tensors, &[]).map(|()| std::fs::read(&path));
    let bytes = written.ok().and_then(Result::ok);
    bytes.unwrap_or_else(|| panic!("tensors are written"))
}

/// Checkpoints as formats 1 and 2 have them: whole tensors in files that are named after them, and ranges.
pub(super) fn older() -> Vec<Vec<u8>> {
    let entry = |name: &str| json!({"name": name, "bytes": 0, "fnv1a64": ""});
    let piece = |start: usize, end: usize, file: &str| {
        json!({
            "kind": "model", "name": "a", "dtype": "f32", "shape": [2, 3],
            "start": start, "end": end, "file": file, "key": "model.a"
        })
    };
    let first = json!({
        "format": 1, "step": 3, "state": {"optimizer_steps": 3},
        "files": [entry("model.safetensors"), entry("optimizer.safetensors")]
    });
    let second = json!({
        "format": 2, "step": 3, "state": {"optimizer_steps": 3},
        "files": [entry("one.safetensors"), entry("two.safetensors")],
        "tensors": [piece(0, 4, "one.safetensors"), piece(4, 6, "two.safetensors")]
    });
    let input = |index: serde_json::Value, files: [(&str, Vec<u8>); 2]| {
        let files = files.map(|(name, contents)| (name.to_owned(), contents));
        seal(std::iter::once((INDEX.to_owned(), index.to_string().into_bytes())).chain(files).collect())
    };
    vec![
        input(
            first,
            [
                ("model.safetensors", zeros(&[("a", &[2, 3]), ("b", &[4])])),
                ("optimizer.safetensors", zeros(&[("exp_avg.a", &[2, 3])])),
            ],
        ),
        input(
            second,
            [
                ("one.safetensors", zeros(&[("model.a", &[4])])),
                ("two.safetensors", zeros(&[("model.a", &[2])])),
            ],
        ),
    ]
}

pub(super) const RESUMED: Target = Target {
    name: "resumed",
    about: "checkpoints that a training goes on from",
    seeds: resumed,
    words: &[
        "\"optimizer_steps\":",
        "\"loss_scale\":",
        "exp_avg",
        "codec-00000-of-00001",
        "18446744073709551615",
    ],
    change: sealed,
    read: go_on,
    cases: 150,
    memory: 48 << 20,
};

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of an input as a checkpoint.
    fn opened<R>(input: &[u8], read: impl FnOnce(&Checkpoint) -> R) -> R {
        let place = folder();
        files::write(input, &place.path().join(STEP));
        read(&Checkpoint::open(&place.path().join(STEP)).expect("a checkpoint"))
    }

    #[test]
    fn trainings_go_on_from_what_they_have_written() {
        let seeds = resumed();
        assert!(seeds.len() > 2 * PRESETS.len(), "codecs keep something");
        let of_each = seeds.len() / PRESETS.len();
        TRAININGS.with(|all| {
            for (training, seeds) in all.iter().zip(seeds.chunks(of_each)) {
                for plain in &seeds[..2] {
                    opened(plain, |checkpoint| training.resume(checkpoint)).expect("goes on");
                }
                let kept = opened(&seeds[2], |checkpoint| training.kept(checkpoint)).expect("reads");
                assert!(!kept.is_empty());
            }
        });
    }

    #[test]
    fn damage_that_is_sealed_is_behind_the_checksums() {
        for input in resumed().into_iter().take(1).chain(older()) {
            let split = files::split(&input).into_iter();
            let mut all: Vec<(String, Vec<u8>)> =
                split.map(|(name, contents)| (name, contents.to_vec())).collect();
            let last = all.last_mut().and_then(|(_, contents)| contents.last_mut()).expect("a file");
            *last ^= 1;
            let kinds = opened(&seal(all), |checkpoint| checkpoint.reader().kinds().count());
            assert!(kinds >= 1);
        }
    }
}
