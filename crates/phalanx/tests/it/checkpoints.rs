//! Checkpoints by the built program: saved by ranks that hold parts, resumed by other ranks, exported, and left whole by
//! crashes, damage and full disks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use phalanx_checkpoint::{Checkpoint, EMA, MODEL};
use serde_json::Value;

use crate::harness::processes::{is_alive, wait_until};
use crate::harness::results::{Tensors, assert_close, bits, checkpoint, contents, copy, log, losses};
use crate::harness::{PROGRAM, Place, Running, both, side_by_side};

/// The folder of the checkpoint of a step.
fn saved(place: &Place, run: &str, step: u64) -> std::path::PathBuf {
    checkpoint(&place.path(run), step)
}

/// The tensors of a safetensors file, under the names that `contents` gives them.
fn tensors(file: &Path, kind: &str) -> Tensors {
    let all = phalanx_tensor::io::load_safetensors(file).expect("a safetensors file");
    all.iter().map(|(name, tensor)| (format!("{kind} {name}"), bits(tensor))).collect()
}

/// A model so small that starting it is most of the time, with averages, clipping, and a last batch that is not whole.
const SMALL: &str = "train tiny --set model.image_size=8 --set model.latent=3 --set model.widths=[3] \
    --set model.embed=3 --set model.text_width=6 --set model.text_vocab=514 --set model.text_context=16 \
    --set data.test_images=4 --set sample.rows=1 --set sample.columns=1 --set log.every=1 \
    --set train.ema=0.9 --set train.clip_norm=0.5 --set data.images=60 --set train.global_batch=24 \
    --set data.tail=ragged";

#[test]
fn every_strategy_saves_the_same_and_goes_on_from_every_other() {
    let place = Place::new();
    side_by_side(["adamw", "sgd"], |optimizer| {
        let small = format!("{SMALL} --set optim.kind={optimizer} --set optim.lr=0.01");
        let name = |run: &str| format!("{optimizer}-{run}");
        // On as many ranks reductions have the same order, and everything is the same to the bit.
        place.succeed(&format!("{small} --ranks 2 --steps 6 --strategy ddp --out {}", name("ddp")));
        let expected = contents(&saved(&place, &name("ddp"), 6));
        let kinds: Vec<&str> = match optimizer {
            "sgd" => vec![EMA, MODEL, "momentum_buffer"],
            _ => vec![EMA, "exp_avg", "exp_avg_sq", MODEL],
        };
        for kind in &kinds {
            assert!(expected.keys().any(|key| key.starts_with(&format!("{kind} "))), "{kind}");
        }
        for (from, to) in [("zero1", "fsdp"), ("fsdp", "ddp"), ("zero2", "zero1")] {
            let run = name(&format!("{from}-{to}"));
            place.succeed(&format!("{small} --ranks 2 --steps 3 --strategy {from} --out {run}"));
            place.succeed(&format!("{small} --ranks 2 --steps 6 --strategy {to} --out {run} --resume"));
            assert_eq!(losses(&place.path(&run)), losses(&place.path(&name("ddp"))), "{run}");
            assert!(contents(&saved(&place, &run, 6)) == expected, "{run}: the checkpoints differ");
        }
        // Numbers of ranks that divide nothing, groups of replicas, and one rank.
        place.succeed(&format!("{small} --ranks 1 --steps 10 --out {}", name("one")));
        let run = name("mixed");
        let mut resume = "";
        for (ranks, strategy, steps) in
            [(4, "fsdp", 2), (2, "ddp", 4), (3, "fsdp", 6), (1, "zero1", 8), (4, "hsdp", 9), (6, "zero2", 10)]
        {
            let line =
                format!("{small} --ranks {ranks} --strategy {strategy} --steps {steps} --out {run} {resume}");
            let shown = place.succeed(&line);
            assert_eq!(shown.contains("resumed after step "), !resume.is_empty(), "{shown}");
            resume = "--resume";
        }
        assert_close(&run, &losses(&place.path(&run)), &losses(&place.path(&name("one"))), 1e-5);
    });
}

#[test]
fn each_rank_writes_its_part_once() {
    let place = Place::new();
    let files = |run: &str| -> Vec<String> {
        let index = Checkpoint::open(&saved(&place, run, 1)).expect("complete").index().clone();
        index.files.into_iter().map(|file| file.name.replace(".safetensors", "")).collect()
    };
    let cases: &[(&str, usize, &[&str])] = &[
        ("ddp", 3, &["ema", "model", "optimizer"]),
        ("zero1", 3, &["model", "rank-00000-of-00003", "rank-00001-of-00003", "rank-00002-of-00003"]),
        ("fsdp", 3, &["rank-00000-of-00003", "rank-00001-of-00003", "rank-00002-of-00003"]),
        ("hsdp", 4, &["rank-00000-of-00002", "rank-00001-of-00002"]),
    ];
    let mut sizes = BTreeMap::new();
    for (strategy, ranks, expected) in cases {
        for asynchronous in [true, false] {
            let run = format!("{strategy}-{asynchronous}");
            place.succeed(&format!(
                "{SMALL} --ranks {ranks} --strategy {strategy} --steps 1 --set checkpoint.asynchronous={asynchronous} --out {run}"
            ));
            assert_eq!(files(&run), *expected, "{run}");
            let index = Checkpoint::open(&saved(&place, &run, 1)).expect("complete").index().clone();
            let elements: usize = index.tensors.iter().map(|piece| piece.region.len()).sum();
            sizes.insert(run, (elements, index));
        }
        let read = |asynchronous: bool, file: &str| {
            let run = format!("{strategy}-{asynchronous}");
            fs::read(saved(&place, &run, 1).join(format!("{file}.safetensors"))).expect("reads")
        };
        for file in *expected {
            assert!(
                read(true, file) == read(false, file),
                "{strategy}: {file} differs when written during training"
            );
        }
    }
    let whole = sizes["ddp-true"].0;
    assert!(sizes.values().all(|(elements, _)| *elements == whole), "every element is there once");
    // What one rank has of three is a third, to the element of each message, but for the buffers, which rank 0 writes.
    let (_, index) = &sizes["fsdp-true"];
    let mut held: BTreeMap<&str, usize> = BTreeMap::new();
    for piece in index.tensors.iter().filter(|piece| piece.dtype == "f32" && !piece.name.contains("running"))
    {
        *held.entry(&piece.file).or_default() += piece.region.len();
    }
    let (most, least) = (held.values().max().copied(), held.values().min().copied());
    assert!(held.len() == 3 && most.zip(least).is_some_and(|(most, least)| most - least <= 64), "{held:?}");
}

#[test]
fn a_rank_reads_its_share_and_no_more() {
    let place = Place::new();
    // Large enough that headers do not matter.
    let common = "train tiny --set train.ema=0.9 --set model.widths=[16,32] --set checkpoint.keep=3";
    place.succeed(&format!("{common} --ranks 1 --steps 1 --out run"));
    place.succeed(&format!("{common} --ranks 4 --strategy fsdp --steps 2 --out run --resume"));
    place.succeed(&format!("{common} --ranks 4 --strategy fsdp --steps 3 --out run --resume"));
    let bytes = |step: u64| -> f64 {
        let index = Checkpoint::open(&saved(&place, "run", step)).expect("complete").index().clone();
        index.files.iter().map(|file| file.bytes as f64).sum()
    };
    for rank in 0..4 {
        let log = log(&place.path("run"), rank);
        // From a checkpoint of one rank and whole tensors, and from one of four and parts.
        for step in [1, 2] {
            let start = format!("resumes after step {step} with ");
            let found = log.split(&start).nth(1).and_then(|rest| rest.split(' ').next());
            let found: f64 = found.expect("a line").parse().expect("a number");
            assert!(found < bytes(step) * 0.28, "rank {rank}, step {step}: {found} of {}", bytes(step));
        }
    }
}

#[test]
fn an_export_is_one_file_with_the_reference_names() {
    let place = Place::new();
    place.succeed(&format!("{SMALL} --ranks 2 --strategy ddp --steps 3 --out ddp"));
    let whole = saved(&place, "ddp", 3);
    let model = tensors(&whole.join("model.safetensors"), MODEL);
    assert!(
        model.contains_key("model image.encoder.0.conv.weight") || model.len() > 10,
        "{:?}",
        model.keys()
    );
    for (run, ranks) in [("ddp", 2), ("zero1", 2), ("fsdp", 2)] {
        if run != "ddp" {
            place.succeed(&format!("{SMALL} --ranks {ranks} --strategy {run} --steps 3 --out {run}"));
        }
        let shown = place.succeed(&format!("export {run} --out {run}.safetensors"));
        assert!(shown.contains(&format!("{} tensors, after step 3", model.len())), "{shown}");
        assert!(tensors(&place.path(&format!("{run}.safetensors")), MODEL) == model, "{run}");
        let line = format!("export {run}/checkpoints/step-00000003 --ema --out {run}-ema.safetensors");
        let shown = place.succeed(&line);
        assert!(shown.contains(" of them averages"), "{shown}");
        let averaged = tensors(&place.path(&format!("{run}-ema.safetensors")), MODEL);
        assert!(averaged != model && averaged.keys().eq(model.keys()), "{run}: averages differ from weights");
        let ema = tensors(&whole.join("ema.safetensors"), "");
        for (name, tensor) in &averaged {
            let average = ema.get(&name.replace("model ", " ema."));
            assert_eq!(average.unwrap_or(&model[name]), tensor, "{run}: {name}");
        }
    }
    // The exported averages are what is evaluated.
    let of_run: Value = serde_json::from_str(place.succeed("eval --json fsdp").trim()).expect("is JSON");
    let sets = SMALL.split("tiny ").nth(1).unwrap_or_default();
    let sets = sets.replace(
        "--set data.tail=ragged",
        "--set model.kl_warmup_steps=10 --set model.l1_smooth=0 \
        --set model.text_layers=1 --set model.text_heads=2",
    );
    let line = format!("eval --json --model cvae --weights fsdp-ema.safetensors --data shapes {sets}");
    let of_file: Value = serde_json::from_str(place.succeed(&line).trim()).expect("is JSON");
    assert_eq!(of_run["loss"], of_file["loss"]);

    place.succeed(&format!("{SMALL} --set train.ema=0 --ranks 1 --steps 1 --out plain"));
    let damaged = saved(&place, "fsdp", 3).join("rank-00001-of-00002.safetensors");
    fs::remove_file(damaged).expect("removes");
    for (line, words) in [
        ("export plain --ema --out x.safetensors", "holds no averages"),
        ("export fsdp --out x.safetensors", "rank-00001-of-00002.safetensors: No such file"),
        ("export fsdp/checkpoints/step-00000003 --out x.safetensors", "checkpoint is damaged"),
        ("export fsdp/logs --out x.safetensors", "neither a run"),
        ("export ddp --out nowhere/x.safetensors", "nowhere/x.safetensors"),
    ] {
        let shown = place.fail(line);
        assert!(shown.contains(words), "{line}: {shown}");
        assert!(!place.path("x.safetensors").exists(), "{line}");
    }
}

#[test]
fn damaged_parts_are_named_and_an_older_checkpoint_is_used() {
    let place = Place::new();
    type Harm = fn(&Path);
    let harms: &[(Harm, &str)] = &[
        (
            |file| {
                let bytes = fs::read(file).expect("reads");
                fs::write(file, &bytes[..bytes.len() - 4]).expect("writes");
            },
            "rank-00002-of-00003.safetensors: has ",
        ),
        (|file| fs::remove_file(file).expect("removes"), "rank-00002-of-00003.safetensors: No such file"),
        (
            |file| {
                let mut bytes = fs::read(file).expect("reads");
                let middle = bytes.len() / 2;
                bytes[middle] ^= 4;
                fs::write(file, bytes).expect("writes");
            },
            "rank-00002-of-00003.safetensors: its checksum differs",
        ),
    ];
    place.succeed(&format!("{SMALL} --ranks 3 --strategy fsdp --steps 4 --set checkpoint.every=2 --out run"));
    for (at, (harm, words)) in harms.iter().enumerate() {
        let run = format!("run-{at}");
        copy(&place.path("run"), &place.path(&run));
        harm(&saved(&place, &run, 4).join("rank-00002-of-00003.safetensors"));
        // Read by fewer ranks than files, by as many, and by more.
        let ranks = at + 2;
        let line = format!("{SMALL} --ranks {ranks} --strategy fsdp --steps 5 --out {run} --resume");
        let shown = place.succeed(&line);
        assert!(shown.contains(words) && shown.contains("an older checkpoint is used"), "{shown}");
        assert!(shown.contains("resumed after step 2"), "{shown}");
        assert!(Checkpoint::open(&saved(&place, &run, 5)).is_ok());
    }
}

/// Hidden folders of checkpoints that are not complete.
fn hidden(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("checkpoints")).expect("lists").filter_map(Result::ok);
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with('.')).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_told_and_leaves_the_previous_checkpoint_whole() {
    side_by_side([true, false], |asynchronous| {
        let place = Place::new();
        let common = format!("{SMALL} --ranks 1 --set checkpoint.asynchronous={asynchronous} --out run");
        place.succeed(&format!("{common} --steps 2"));
        let before = contents(&saved(&place, "run", 2));
        // No file may grow beyond 8 KiB: the model's does. Without the trap the system would kill the process instead of
        // failing the write.
        let script = format!(
            "trap '' XFSZ; ulimit -f 16; exec {PROGRAM} {common} --steps 9 --set checkpoint.every=2 --resume"
        );
        let output =
            Command::new("sh").args(["-c", &script]).current_dir(place.folder()).output().expect("a shell");
        let shown = both(&output);
        assert_eq!(output.status.code(), Some(1), "{shown}");
        assert!(
            shown.contains("checkpoint of step 4: cannot write ")
                && shown.contains(".safetensors: File too large"),
            "{shown}"
        );
        assert!(
            hidden(&place.path("run")).is_empty(),
            "the space is given back: {:?}",
            hidden(&place.path("run"))
        );
        assert!(contents(&saved(&place, "run", 2)) == before);
        let shown = place.succeed(&format!("{common} --steps 5 --resume"));
        assert!(shown.contains("resumed after step 2"), "{shown}");
    });
}

/// Three ranks, without the norm that parts sum in another order: every strategy computes the same bits.
fn unclipped() -> String {
    format!("{SMALL} --ranks 3 --set train.clip_norm=0")
}

/// Kills a rank, or all at once, `times` times at drawn moments of saving, and goes on each time.
#[cfg(target_os = "linux")]
fn kill_while_saving(times: u64) {
    let place = Place::new();
    let mut resume = "";
    let mut last = 0;
    for time in 0..times {
        let strategy = ["fsdp", "zero1", "ddp"][time as usize % 3];
        // It would take hours, and saves after every step.
        let line = format!(
            "{} --strategy {strategy} --set checkpoint.every=1 --steps 1000000 --out run {resume}",
            unclipped()
        );
        let mut running = Running::start(&place, &line);
        resume = "--resume";
        running.wait_for("checkpoint", |run| run.saved().last().is_some_and(|step| *step >= last + 2));
        // A drawn moment within the steps and the saving that follow.
        std::thread::sleep(Duration::from_micros(time.wrapping_mul(2_654_435_761) % 60_000));
        let ranks = running.ranks();
        let victims = match time % 2 {
            0 => ranks.clone(),
            _ => ranks.get(time as usize % 3).copied().into_iter().collect(),
        };
        let victims: Vec<String> = victims.iter().map(u32::to_string).collect();
        // Some may be gone already; the others are what matters.
        let _ =
            Command::new("kill").arg("-KILL").args(&victims).stderr(Stdio::null()).status().expect("kill");
        running.fail();
        wait_until("end of the ranks", String::new, || !ranks.iter().any(|rank| is_alive(*rank)));
        // Every folder that is named as a checkpoint is a whole one: nothing has to be skipped.
        let (found, damaged) = Checkpoint::newest(&place.path("run").join("checkpoints"));
        let found = found.expect("a checkpoint");
        assert!(damaged.is_empty(), "time {time}: {damaged:?}");
        assert!(found.step() >= last + 2, "time {time}");
        assert!(contents(found.folder()).len() > 10);
        last = found.step();
    }
    let line = format!("{} --strategy fsdp --steps {} --out run --resume", unclipped(), last + 2);
    let shown = place.succeed(&line);
    assert!(shown.contains(&format!("resumed after step {last}")), "{shown}");
    assert!(hidden(&place.path("run")).is_empty(), "what was left behind is gone");
    // And nothing of it is in the numbers.
    place.succeed(&format!("{} --steps {} --out one", unclipped(), last + 2));
    assert_eq!(losses(&place.path("run")), losses(&place.path("one")));
}

#[test]
#[cfg(target_os = "linux")]
fn a_kill_while_saving_leaves_a_whole_checkpoint() {
    kill_while_saving(3);
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "forty kills take minutes: cargo xtask test --full"]
fn many_kills_while_saving_leave_whole_checkpoints() {
    kill_while_saving(40);
}

/// The function of `docs/checkpoints.md`, where Python and NumPy are installed.
#[test]
fn the_python_of_the_page_reads_the_shards_of_all_ranks() {
    let numpy = Command::new("python3").args(["-c", "import numpy"]).stderr(Stdio::null()).status();
    if !numpy.is_ok_and(|status| status.success()) {
        eprintln!("not run: python3 has no numpy");
        return;
    }
    let place = Place::new();
    place.succeed(&format!("{SMALL} --ranks 2 --strategy fsdp --steps 1 --out run"));
    for (options, kind) in [("", MODEL), ("--ema", EMA)] {
        place.succeed(&format!("export run {options} --out {kind}.safetensors"));
    }
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/checkpoints.md"));
    let page = page.expect("a page");
    let mut blocks = page.split("```python\n").skip(1).filter_map(|block| block.split("```").next());
    let reader = blocks.find(|block| block.contains("def read_checkpoint")).expect("the function");
    // Of the averages only trained parameters have pieces.
    let compare = "import sys\n\
        for kind in ('model', 'ema'):\n    \
        whole, flat = read_checkpoint(sys.argv[1], kind), read_file(f'{kind}.safetensors')\n    \
        assert whole and (kind == 'ema' or whole.keys() == flat.keys())\n    \
        assert all(np.array_equal(whole[name].reshape(-1), flat[name]) for name in whole)\n";
    let script = place.write("read.py", format!("{reader}\n{compare}"));
    let mut python = Command::new("python3");
    python.arg(script).arg("run/checkpoints/step-00000001").current_dir(place.folder());
    let output = python.output().expect("python3 starts");
    assert!(output.status.success(), "{}", both(&output));
}
