//! The files that runs leave behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};
use phalanx_checkpoint::{Checkpoint, Hashes};
use phalanx_run::{Line, Summary, read_metrics};
use serde_json::Value;

/// The contents of a JSON file.
pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("reads")).expect("is JSON")
}

/// The lines of a run's metrics; none before the first step.
pub(crate) fn lines(run: &Path) -> Vec<Line> {
    read_metrics(&run.join("metrics.jsonl")).unwrap_or_default()
}

/// The last step of a run's metrics; 0 before the first.
pub(crate) fn step(run: &Path) -> u64 {
    lines(run).last().map_or(0, Line::step)
}

/// The steps of a run's metrics, in the order of the file.
pub(crate) fn steps(run: &Path) -> Vec<u64> {
    lines(run).iter().map(Line::step).collect()
}

/// A field of every line of a run's metrics that has it.
pub(crate) fn column(run: &Path, name: &str) -> Vec<f64> {
    lines(run).iter().filter_map(|line| line.number(name)).collect()
}

/// The steps of a run that report a loss, with the loss.
pub(crate) fn losses(run: &Path) -> Vec<(u64, f64)> {
    lines(run).iter().filter_map(|line| Some((line.step(), line.number("loss")?))).collect()
}

/// Fails unless two curves have the same steps, and losses within a relative tolerance.
#[track_caller]
pub(crate) fn assert_close(what: &str, found: &[(u64, f64)], expected: &[(u64, f64)], tolerance: f64) {
    let steps = |losses: &[(u64, f64)]| losses.iter().map(|(step, _)| *step).collect::<Vec<_>>();
    assert_eq!(steps(found), steps(expected), "{what}");
    for ((step, found), (_, expected)) in found.iter().zip(expected) {
        let off = (found - expected).abs();
        assert!(off < tolerance * expected.abs(), "{what}, step {step}: {found} and {expected}");
    }
}

/// The summary of a run that has ended.
pub(crate) fn summary(run: &Path) -> Summary {
    Summary::read(&run.join("summary.json")).expect("a summary")
}

/// The folder of a run's checkpoint of a step.
pub(crate) fn checkpoint(run: &Path, step: u64) -> PathBuf {
    run.join(format!("checkpoints/step-{step:08}"))
}

/// Writes the index of a checkpoint, with the checksum of itself.
pub(crate) fn write_index(path: &Path, mut index: Value) {
    index.as_object_mut().expect("an object").remove("blake3");
    let text = index.to_string();
    let text = text.strip_suffix('}').expect("an object");
    let hash = blake3::hash(text.as_bytes()).to_hex();
    fs::write(path, format!("{text},\n  \"blake3\": \"{hash}\"\n}}\n")).expect("writes");
}

/// The steps of a run's checkpoints, the newest last.
pub(crate) fn saved(run: &Path) -> Vec<u64> {
    Checkpoint::list(&run.join("checkpoints")).iter().map(|found| found.0).collect()
}

/// The hashes of a run's newest checkpoint. No checkpoint may be damaged.
pub(crate) fn hashes(run: &Path) -> Hashes {
    let (newest, damaged) = Checkpoint::newest(&run.join("checkpoints"));
    assert!(damaged.is_empty(), "{damaged:?}");
    newest.expect("a checkpoint").hashes().expect("in the index")
}

/// Tensors by kind and name: shapes, and values as bits.
pub(crate) type Tensors = BTreeMap<String, (Vec<usize>, Vec<u64>)>;

/// The shape and the bits of a tensor, as f64.
pub(crate) fn bits(tensor: &Tensor) -> (Vec<usize>, Vec<u64>) {
    let values = tensor.flatten_all().and_then(|flat| flat.to_dtype(DType::F64));
    let values = values.and_then(|values| values.to_vec1::<f64>()).expect("numbers");
    (tensor.dims().to_vec(), values.into_iter().map(f64::to_bits).collect())
}

/// All tensors of a checkpoint, assembled from its files.
pub(crate) fn contents(folder: &Path) -> Tensors {
    let checkpoint = Checkpoint::open(folder).expect("a complete checkpoint");
    let reader = checkpoint.reader();
    let mut all = BTreeMap::new();
    for kind in reader.kinds() {
        for (name, _) in reader.tensors(kind) {
            all.insert(format!("{kind} {name}"), bits(&reader.read(kind, name).expect("reads")));
        }
    }
    all
}

/// The log of a rank.
pub(crate) fn log(run: &Path, rank: usize) -> String {
    fs::read_to_string(run.join(format!("logs/rank-{rank}.log"))).expect("a log")
}

/// The logs of all ranks, for messages.
pub(crate) fn logs(run: &Path) -> String {
    let log = |rank: usize| fs::read_to_string(run.join(format!("logs/rank-{rank}.log"))).ok();
    (0..8).filter_map(|rank| Some(format!("--- rank {rank}\n{}\n", log(rank)?))).collect()
}

/// Copies a folder with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("lists").filter_map(Result::ok) {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).expect("copies")),
        }
    }
}
