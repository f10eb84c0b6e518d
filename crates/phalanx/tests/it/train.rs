//! Whole trainings by the built program: ranks that agree, runs that go on where they were, faults that are told.

use std::fs;
#[cfg(target_os = "linux")]
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

use serde_json::Value;

#[cfg(target_os = "linux")]
use crate::harness::Running;
#[cfg(target_os = "linux")]
use crate::harness::processes::{is_alive, kill, wait_until};
#[cfg(target_os = "linux")]
use crate::harness::results::checkpoint;
use crate::harness::results::{json, losses};
use crate::harness::{Place, side_by_side, stderr};

#[test]
fn ranks_together_learn_what_one_learns() {
    let place = Place::new();
    let common = "train tiny --steps 6 --set log.every=1 --set train.clip_norm=1 --set train.ema=0.9";
    for (name, more) in [
        ("one", "--ranks 1"),
        ("two", "--ranks 2"),
        ("four", "--ranks 4"),
        ("pieces", "--ranks 2 --set train.accumulate=2"),
    ] {
        place.succeed(&format!("{common} {more} --out {name}"));
    }
    let one = losses(&place.path("one"));
    assert_eq!(one.len(), 6);
    for name in ["two", "four", "pieces"] {
        for ((step, expected), (_, found)) in one.iter().zip(losses(&place.path(name))) {
            assert!(
                (found - expected).abs() < 2e-4 * expected.abs(),
                "{name}, step {step}: {found} {expected}"
            );
        }
    }
    let summary = json(&place.path("two").join("summary.json"));
    assert_eq!((summary["status"].as_str(), summary["world_size"].as_u64()), (Some("finished"), Some(2)));
    let ranks = summary["ranks"].as_array().expect("ranks");
    assert_eq!(ranks.len(), 2);
    for rank in ranks {
        for field in ["parameter_bytes", "gradient_bytes", "optimizer_bytes", "bytes_sent", "bytes_received"]
        {
            assert!(rank[field].as_u64().is_some_and(|bytes| bytes > 0), "{field}: {rank}");
        }
    }
}

#[test]
fn ranks_together_contrast_what_one_contrasts() {
    let place = Place::new();
    // Pictures are told apart from the texts of all ranks. The last batch of an epoch is uneven, and one rank of four has none of
    // it: 16 + 16 + 3 pictures.
    let common = "train shapes-clip --steps 6 --set log.every=1 --set model.image_size=8 --set model.widths=[4] \
        --set model.embed=8 --set model.text_width=8 --set model.text_heads=2 --set model.text_layers=1 \
        --set train.global_batch=16 --set data.images=35 --set data.test_images=20 --set data.tail=ragged \
        --set eval.every=3 --set sample.every=0 --set train.clip_norm=1";
    for (name, more) in [
        ("one", "--ranks 1"),
        ("two", "--ranks 2"),
        ("four", "--ranks 4 --strategy fsdp"),
        ("whole", "--ranks 1 --set train.accumulate=2"),
        ("pieces", "--ranks 2 --set train.accumulate=2"),
    ] {
        place.succeed(&format!("{common} {more} --out {name}"));
    }
    for (one, name) in [("one", "two"), ("one", "four"), ("whole", "pieces")] {
        let (expected, found) = (losses(&place.path(one)), losses(&place.path(name)));
        assert_eq!((expected.len(), found.len()), (6, 6));
        for ((step, expected), (_, found)) in expected.iter().zip(found) {
            let off = (found - expected).abs();
            assert!(off < 2e-4 * expected.abs(), "{name}, step {step}: {found} {expected}");
        }
        let tested = |run: &str| {
            let metrics = json(&place.path(run).join("summary.json"))["metrics"].clone();
            ["test_loss", "test_accuracy"].map(|name| metrics[name].as_f64().expect("a number"))
        };
        let ([expected, right], [found, also_right]) = (tested(one), tested(name));
        assert!((found - expected).abs() < 1e-3 * expected, "{name}: {found} {expected}");
        assert_eq!(right, also_right, "{name}");
    }
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    let place = Place::new();
    // Steps in mid-epoch, a schedule that changes, averages, crops and flips: all have to go on where they were.
    let common = "train tiny --set log.every=1 --set train.ema=0.9 --set schedule.kind=cosine \
        --set data.flip=true --set data.crop_padding=2 --set data.images=80 --set train.global_batch=16";
    place.succeed(&format!("{common} --steps 9 --out whole"));
    place.succeed(&format!("{common} --steps 4 --out parts"));
    let shown = place.succeed(&format!("{common} --steps 9 --out parts --resume"));
    assert!(shown.contains("resumed after step 4"), "{shown}");
    assert_eq!(losses(&place.path("whole")), losses(&place.path("parts")));
    for file in ["model", "optimizer", "ema"] {
        let read = |run: &str| {
            fs::read(place.path(run).join(format!("checkpoints/step-00000009/{file}.safetensors")))
                .expect("reads")
        };
        assert!(read("whole") == read("parts"), "{file} differs");
    }
    // The configuration that the run has left is enough to go on with.
    let shown = place.succeed("train --resume --out parts --steps 11");
    assert!(shown.contains("resumed after step 9"), "{shown}");
    assert_eq!(losses(&place.path("parts")).last().map(|last| last.0), Some(11));
    let shown = place.succeed("train --resume --out parts --steps 11");
    assert!(shown.contains("nothing to do"), "{shown}");
}

#[test]
fn a_run_that_was_lost_before_its_summary_is_concluded() {
    let place = Place::new();
    place.succeed("train tiny --set log.every=1 --ranks 2 --steps 5 --out run");
    let (run, summary) = (place.path("run"), place.path("run").join("summary.json"));
    let expected = json(&summary);
    let before = losses(&run);
    for resumed in ["", "--ranks 1"] {
        // As by a kill between the last checkpoint and the summary.
        fs::remove_file(&summary).expect("there is one");
        let line = format!("train --resume --out run --steps 5 {resumed}");
        let shown = place.succeed(&line);
        assert!(!shown.contains("nothing to do"), "{shown}");
        let told = json(&summary);
        assert_eq!((&told["status"], &told["step"]), (&"finished".into(), &5.into()));
        for name in ["loss", "test_loss"] {
            assert_eq!(told["metrics"][name], expected["metrics"][name], "{name}");
        }
        assert_eq!(losses(&run), before, "no step is told twice");
    }
    let shown = place.succeed("train --resume --out run --steps 5");
    assert!(shown.contains("nothing to do"), "{shown}");
}

#[test]
fn strategies_give_the_same_checkpoints_and_go_on_from_each_others() {
    let place = Place::new();
    // With averages, clipping by the global norm, micro-batches, an uneven last batch of an epoch, and a last test image
    // that only one rank has.
    let common = "train tiny --set log.every=1 --set train.ema=0.9 --set train.clip_norm=0.5 --set data.test_images=33 \
        --set train.accumulate=2 --set data.images=80 --set train.global_batch=32";
    for strategy in ["dp", "ddp", "zero1", "zero2", "fsdp"] {
        place.succeed(&format!("{common} --ranks 2 --steps 5 --strategy {strategy} --out {strategy}"));
    }
    for strategy in ["dp", "zero1", "zero2", "fsdp"] {
        // Who holds parts writes parts; checkpoints.rs compares the rest of them.
        place.succeed(&format!("export {strategy} --out {strategy}.safetensors"));
        place.succeed("export ddp --out ddp.safetensors");
        let read = |run: &str| fs::read(place.path(&format!("{run}.safetensors"))).expect("reads");
        assert!(read("ddp") == read(strategy), "{strategy}: the models differ");
        assert_eq!(losses(&place.path("ddp")), losses(&place.path(strategy)), "{strategy}");
        let tested = |run: &str| json(&place.path(run).join("summary.json"))["metrics"]["test_loss"].clone();
        assert!(
            tested("ddp").is_f64() && tested("ddp") == tested(strategy),
            "{strategy}: {}",
            tested(strategy)
        );
        let held = |field: &str| -> u64 {
            let ranks = json(&place.path(strategy).join("summary.json"))["ranks"].clone();
            ranks.as_array().expect("ranks").iter().filter_map(|rank| rank[field].as_u64()).sum()
        };
        let whole = json(&place.path("ddp").join("summary.json"))["ranks"][0].clone();
        let of_whole = |field: &str| whole[field].as_u64().expect("a number");
        assert_eq!(
            held("optimizer_bytes"),
            of_whole("optimizer_bytes"),
            "{strategy}: no state is held twice"
        );
        if strategy == "fsdp" {
            assert_eq!(held("parameter_bytes"), of_whole("parameter_bytes"), "and no parameter");
        }
    }
    // Saved by four ranks that hold parts, continued by two that hold everything, then by parts again.
    place.succeed(&format!("{common} --ranks 1 --steps 9 --out one"));
    place.succeed(&format!("{common} --ranks 4 --steps 3 --strategy fsdp --out mixed"));
    place.succeed(&format!("{common} --ranks 2 --steps 6 --strategy ddp --out mixed --resume"));
    // Three ranks have unequal shares.
    place.succeed(&format!("{common} --ranks 3 --steps 7 --strategy dp --out mixed --resume"));
    place.succeed(&format!("{common} --ranks 4 --steps 8 --strategy hsdp --out mixed --resume"));
    place.succeed(&format!("{common} --ranks 8 --steps 9 --strategy zero3 --out mixed --resume"));
    let (one, mixed) = (losses(&place.path("one")), losses(&place.path("mixed")));
    assert_eq!((one.len(), mixed.len()), (9, 9));
    for ((step, expected), (_, found)) in one.iter().zip(mixed) {
        assert!((found - expected).abs() < 1e-5 * expected.abs(), "step {step}: {found} {expected}");
    }
}

#[test]
fn replicas_live_in_one_process() {
    let place = Place::new();
    place.succeed(
        "train tiny --ranks 3 --strategy dp --steps 4 --set train.ema=0.9 --set eval.every=2 --out run",
    );
    let run = place.path("run");
    assert!(!run.join("logs/rank-1.log").exists(), "there is one process");
    assert!(run.join("samples/step-00000004.png").exists() && run.join("samples/prompts.txt").exists());
    let summary = json(&run.join("summary.json"));
    assert_eq!((summary["world_size"].as_u64(), summary["strategy"].as_str()), (Some(3), Some("dp")));
    let ranks = summary["ranks"].as_array().expect("ranks");
    let held = |rank: usize, field: &str| ranks[rank][field].as_u64().expect("a number");
    for rank in 0..3 {
        assert_eq!(held(rank, "parameter_bytes"), held(0, "parameter_bytes"), "a copy on each thread");
        assert_eq!(held(rank, "gradient_bytes") > 0, rank == 0, "summed at the leader");
        assert_eq!(held(rank, "optimizer_bytes") > 0, rank == 0, "updated at the leader");
        assert!(held(rank, "bytes_received") > 0);
    }
    // What a launcher starts are several processes.
    let launched = place
        .command("train tiny --strategy dp --out launched")
        .envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")])
        .output()
        .expect("runs");
    let said = stderr(&launched);
    assert_eq!(launched.status.code(), Some(2), "{said}");
    assert!(said.contains("threads of one process") && said.contains("--strategy ddp"), "{said}");
    assert!(!place.path("launched").exists());
    // A failure has its rank and its log, as that of a process has.
    let said = place.fail_with(
        1,
        "train tiny --ranks 2 --strategy dp --set optim.kind=sgd --set optim.lr=1e30 --set optim.momentum=0 --out broken",
    );
    assert!(said.contains("rank 0 failed: step ") && said.contains("rank-0.log"), "{said}");
    let said = place.fail_with(1, "train tiny --ranks 2 --strategy dp --data cifar10=nowhere --out unread");
    assert!(said.contains("rank 0 failed: ") && said.contains("nowhere"), "{said}");
}

#[test]
fn a_damaged_checkpoint_is_told_and_an_older_one_used() {
    let place = Place::new();
    place.succeed("train tiny --ranks 1 --steps 6 --set checkpoint.every=3 --out run");
    let file = place.path("run").join("checkpoints/step-00000006/model.safetensors");
    let bytes = fs::read(&file).expect("reads");
    fs::write(&file, &bytes[..bytes.len() / 2]).expect("writes");
    let shown = place.succeed("train --resume --out run --steps 7");
    assert!(shown.contains("model.safetensors: has ") && shown.contains("resumed after step 3"), "{shown}");
}

#[test]
fn a_run_can_be_evaluated_and_sampled() {
    let place = Place::new();
    let shown = place.succeed("train tiny --ranks 1 --out run");
    let plain = shown.lines().find(|line| line.trim_start().starts_with("step  1/30")).unwrap_or(&shown);
    for word in ["  l1 ", "loss ", "lr ", "samples/s"] {
        assert!(plain.contains(word), "{plain}");
    }
    let commands = [
        "sample run --prompt '",
        "eval run",
        "report run",
        "train --resume --out run --set train.steps=60 --steps 0",
    ];
    for command in commands {
        assert!(shown.contains(command), "{command}: {shown}");
    }
    let run = place.path("run");
    let curve = losses(&run);
    assert!(curve[curve.len() - 1].1 < 0.8 * curve[0].1, "{curve:?}");
    for file in [
        "config.toml",
        "metrics.jsonl",
        "summary.json",
        "curves.svg",
        "checkpoints/latest",
        "logs/rank-0.log",
    ] {
        assert!(run.join(file).exists(), "{file}");
    }
    assert!(run.join("samples/step-00000030.png").exists());
    let found: Value = serde_json::from_str(&place.succeed("eval --json run")).expect("is JSON");
    let told = json(&run.join("summary.json"))["metrics"]["test_loss"].as_f64().expect("a test loss");
    let loss = found["loss"].as_f64().expect("a loss");
    assert!((loss - told).abs() < 1e-5 * told.abs(), "{loss} {told}");
    let weights = "--weights run/checkpoints/step-00000030/model.safetensors";
    let same = "--set model.image_size=16 --set model.latent=16 --set model.widths=[8,16] --set model.text_width=16 \
        --set model.text_layers=1 --set model.text_heads=2 --set data.test_images=32 --set model.l1_smooth=0 \
        --set model.kl_weight=0.0005";
    let shown = place.succeed(&format!("eval --json --model cvae {weights} --data shapes {same}"));
    let found: Value = serde_json::from_str(&shown).expect("is JSON");
    let of_weights = found["loss"].as_f64().expect("a loss");
    assert!((of_weights - told).abs() < 1e-5 * told.abs(), "{of_weights} {told}");
    let prompts = ["--prompt", "a small red circle", "--prompt", "a large blue square"];
    let drawn = place.command("sample run --out grid.png --columns 3").args(prompts).output().expect("runs");
    assert!(drawn.status.success(), "{}", stderr(&drawn));
    let grid = fs::read(place.path("grid.png")).expect("a picture");
    assert!(grid.starts_with(b"\x89PNG"));
    let again = place.fail_with(1, "train tiny --ranks 1 --out run");
    assert!(again.contains("already holds a run"), "{again}");
}

#[test]
fn a_dry_run_trains_nothing() {
    let place = Place::new();
    let shown = place.succeed("train tiny --dry-run --out run");
    assert!(shown.contains("parameters: ") && shown.contains("steps: 16 in an epoch, 30 in all"), "{shown}");
    assert!(!shown.contains("[train]"), "{shown}");
    assert!(place.succeed("train tiny --dry-run --verbose --out run").contains("[train]"));
    assert!(!place.path("run").exists());
}

#[test]
fn every_instruction_set_trains_and_others_are_refused() {
    let place = Place::new();
    let mut last = Vec::new();
    for level in ["portable", "avx2", "avx512", "neon", "sse9"] {
        let run = format!("train tiny --ranks 1 --steps 4 --out {level}");
        let output = place.command(&run).env("PHALANX_SIMD", level).output().expect("runs");
        if output.status.success() {
            last.push(losses(&place.path(level)).last().expect("a loss").1);
        } else {
            let said = stderr(&output);
            assert!(said.contains(&format!("instruction set `{level}`")), "{said}");
        }
    }
    assert!(!last.is_empty() && last.iter().all(|loss| (loss / last[0] - 1.0).abs() < 1e-3), "{last:?}");
}

#[test]
fn a_broken_loss_names_the_step_and_nothing_is_saved_after_the_one_before() {
    side_by_side([(1, "step "), (2, "rank 0 failed: step ")], |(ranks, names)| {
        let place = Place::new();
        let said = place.fail_with(
            1,
            &format!(
                "train tiny --ranks {ranks} --set optim.kind=sgd --set optim.lr=1e30 --set optim.momentum=0 \
             --set checkpoint.every=1 --set checkpoint.keep=9 --out run"
            ),
        );
        assert!(said.contains(names) && said.contains("the loss is "), "{said}");
        assert_eq!(said.contains("rank-0.log"), ranks > 1, "{said}");
        // Every step before was saved, and no other.
        let named = said.split("step ").nth(1).and_then(|rest| rest.split(':').next());
        let step: u64 = named.and_then(|step| step.parse().ok()).expect("a step");
        let mut saved: Vec<_> = fs::read_dir(place.path("run").join("checkpoints"))
            .expect("lists")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| name != "latest")
            .collect();
        saved.sort();
        let before: Vec<_> = (1..step).map(|step| format!("step-{step:08}")).collect();
        assert!(step > 1 && saved == before, "step {step}: {saved:?}\n{said}");
        // Nor is there a line of it, which would read as a measurement.
        let logged = losses(&place.path("run"));
        assert!(logged.iter().all(|(at, loss)| *at < step && loss.is_finite()), "{logged:?}");
    });
}

#[test]
fn unreadable_data_names_the_file() {
    let place = Place::new();
    fs::create_dir(place.path("images")).expect("a folder");
    fs::write(place.path("images").join("data_batch_1.bin"), [1; 5000]).expect("writes");
    for arguments in ["--data cifar10=images", "--data cifar10=nowhere", "--data folder=images"] {
        let out = arguments.replace(['-', ' ', '='], "");
        let said = place.fail_with(1, &format!("train tiny {arguments} --out {out}"));
        assert!(said.contains("failed: ") && (said.contains("images") || said.contains("nowhere")), "{said}");
    }
    // Nothing was trained, so the same folder serves once the mistake is mended; its logs stay.
    let folder = "datacifar10nowhere";
    assert!(place.path(folder).join("logs").is_dir() && !place.path(folder).join("config.toml").exists());
    place.succeed(&format!("train tiny --steps 1 --out {folder}"));
    let again = place.fail(&format!("train tiny --steps 1 --out {folder}"));
    assert!(again.contains("already holds a run"), "{again}");
}

/// A training that would take hours, after two steps.
#[cfg(target_os = "linux")]
fn begin(place: &Place, strategy: &str) -> Running {
    let line = format!(
        "train tiny --ranks 3 --strategy {strategy} --set train.global_batch=12 --steps 1000000 --out run"
    );
    let mut running = Running::start(place, &line);
    running.wait_for("two steps", |run| run.lines().len() >= 2);
    running
}

/// Waits until no rank of a run is left.
#[cfg(target_os = "linux")]
fn wait_until_gone(ranks: &[u32]) {
    let begun = Instant::now();
    wait_until("end of the ranks", String::new, || !ranks.iter().any(|rank| is_alive(*rank)));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_rank_ends_the_job_soon() {
    let place = Place::new();
    let running = begin(&place, "ddp");
    let ranks = running.ranks();
    assert_eq!(ranks.len(), 3);
    let since = Instant::now();
    // Ranks are started in order, so this is rank 1.
    kill(ranks[1]);
    let end = running.end();
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    assert_eq!(end.code, Some(1), "{end:?}");
    assert!(end.stderr.contains("rank 1 failed: was killed by signal 9"), "{end:?}");
    assert!(end.stderr.contains("rank-1.log"), "{end:?}");
    wait_until_gone(&ranks);
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_parent_takes_its_ranks_along() {
    let place = Place::new();
    let running = begin(&place, "ddp");
    let ranks = running.ranks();
    assert_eq!(ranks.len(), 3);
    running.signal("-KILL");
    running.end();
    wait_until_gone(&ranks);
}

#[test]
#[cfg(target_os = "linux")]
fn an_interrupt_leaves_a_checkpoint_and_a_summary() {
    side_by_side([("ddp", 0), ("dp --interrupted-code 75", 75)], |(strategy, code)| {
        let place = Place::new();
        let running = begin(&place, strategy);
        running.signal("-INT");
        let end = running.end();
        assert_eq!(end.code, Some(code), "{end:?}");
        let run = place.path("run");
        let summary = json(&run.join("summary.json"));
        assert_eq!(summary["status"].as_str(), Some("interrupted"));
        let step = summary["step"].as_u64().expect("a step");
        assert_eq!(losses(&run).last().map(|last| last.0), Some(step));
        let weights = fs::read(checkpoint(&run, step).join("model.safetensors"));
        assert!(!weights.expect("a checkpoint").is_empty());
        let shown = place.succeed(&format!("train --resume --out run --steps {}", step + 2));
        assert!(shown.contains(&format!("resumed after step {step}")), "{shown}");
    });
}

/// The files below a folder, with what is in them.
#[cfg(target_os = "linux")]
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.push((path.clone(), fs::read(path).expect("reads")));
        }
    }
    all
}

#[test]
#[cfg(target_os = "linux")]
fn secrets_are_in_no_argument_environment_log_or_folder() {
    use std::os::unix::fs::PermissionsExt as _;
    let secret = "0f4b8d51c6e27a93ffb1c0d2e4a6880917263544536271809fadbeef01234567";
    side_by_side([true, false], |given| {
        let mut place = Place::new();
        let file = place.write("the-secret", format!("{secret}\n"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("ours");
        if given {
            place = place.with("PHALANX_SECRET_FILE", &file);
            let said = stderr(&place.output("train tiny --ranks 2 --out open"));
            assert!(said.contains("chmod 600"), "{said}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
        // Between hosts everything is encrypted; who has no secret could not do that.
        let mut running = begin(&place, "ddp --set comm.encryption=all");
        let ranks = running.ranks();
        assert_eq!(ranks.len(), 3);
        let is_hex =
            |bytes: &[u8]| bytes.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte));
        for pid in ranks.iter().chain([&running.launcher().id()]) {
            for what in ["cmdline", "environ"] {
                let shown = fs::read(format!("/proc/{pid}/{what}")).expect("it lives");
                // One that was made for these ranks looks like the one that was given.
                let found = shown.windows(secret.len()).find(|window| is_hex(window));
                assert!(found.is_none(), "{what} of {pid}: {found:?}");
            }
        }
        running.signal("-INT");
        let end = running.end();
        assert!(!end.both().contains(secret), "{end:?}");
        for (path, bytes) in contents(&place.path("run")) {
            assert!(
                !bytes.windows(secret.len()).any(|window| window == secret.as_bytes()),
                "{}",
                path.display()
            );
            // Checkpoints name hashes of their files.
            let is_log = path.extension().is_some_and(|kind| kind == "log" || kind == "toml");
            assert!(!is_log || !bytes.windows(secret.len()).any(is_hex), "{}", path.display());
        }
    });
}

#[test]
fn captions_that_are_cut_off_are_told() {
    let place = Place::new();
    let said =
        place.succeed_with_errors("train tiny --ranks 1 --steps 1 --set model.text_context=8 --out cut");
    assert!(said.contains("does not fit a context of 8"), "{said}");
    let log = fs::read_to_string(place.path("cut/logs/rank-0.log")).expect("a log");
    assert_eq!(log.matches("does not fit a context of 8").count(), 1, "{log}");
    let told = |prompt: &str| {
        let mut sample = place.command("sample cut --out cut.png --prompt");
        let output = sample.arg(prompt).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).contains("cut off")
    };
    assert!(told("a large red star in the center on a black background") && !told("a star"));
}
