//! Trainings of one's own, by the command lines of the examples: ranks that agree, runs that go on to the same bits.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use candle_core::Tensor;
use serde_json::Value;

use crate::harness::Place;
use crate::harness::results::log;

/// The program that an example is; cargo builds examples with the tests, but says only where the tests are.
fn example(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let test = std::env::current_exe().expect("a program has a path");
        test.ancestors().nth(2).expect("in a target folder").join("examples")
    });
    let path = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(path.is_file(), "{} is not built; `cargo test` builds examples", path.display());
    path
}

/// An example in a folder of its own, and its settings.
struct Example {
    place: Place,
    settings: &'static str,
}

impl Example {
    fn new(name: &str, settings: &'static str) -> Self {
        let place = Place::of(example(name));
        let lines: Vec<String> =
            (0..80).map(|line| format!("{} lines of text\n", "so ".repeat(line % 7))).collect();
        place.write("text.txt", lines.concat());
        Self { place, settings }
    }

    fn run(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    fn succeed(&self, line: &str) -> String {
        self.place.succeed(line)
    }

    fn train(&self, name: &str, more: &str) {
        let settings = self.settings;
        self.succeed(&format!(
            "train {settings} --set log.every=1 --set train.threads=1 {more} --out {name}"
        ));
    }
}

/// Returns the measurements of a run's steps, without those that depend on the clock.
fn metrics(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
    let clock = [
        "seconds",
        "samples_per_s",
        "gflops",
        "peak_share",
        "memory_bytes",
        "data_share",
        "communication_share",
    ];
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).expect("is JSON");
        clock.iter().for_each(|key| drop(line.as_object_mut().expect("an object").remove(*key)));
        line
    };
    text.lines().map(line).collect()
}

/// Trains alone and, by each strategy, on two ranks; the second half of each run in a second go. All runs measure the same, up
/// to the order of sums, and the runs in two goes measure the same bits.
fn trains_resumes_and_evaluates(place: &Example, measured: &[&str]) {
    place.train("alone", "--ranks 1");
    let alone = metrics(&place.run("alone"));
    assert_eq!(alone.len(), 8);
    for strategy in ["ddp", "fsdp"] {
        let both = format!("--ranks 2 --strategy {strategy}");
        place.train(strategy, &both);
        let (whole, name) = (metrics(&place.run(strategy)), format!("{strategy}-halves"));
        for (one, two) in alone.iter().zip(&whole) {
            for key in measured.iter().filter(|key| one.get(**key).is_some()) {
                let [one, two] = [one, two].map(|line| line[*key].as_f64().expect("a number"));
                assert!((one - two).abs() < 1e-3 * one.abs().max(0.1), "{strategy} {key}: {one} {two}");
            }
        }
        assert!(measured.iter().all(|key| whole.iter().any(|line| line.get(*key).is_some())), "{whole:?}");
        place.train(&name, &format!("{both} --steps 4"));
        place.succeed(&format!("train --resume --out {name} --steps 8"));
        assert_eq!(metrics(&place.run(&name))[4..], whole[4..], "{strategy}: resumed to the same bits");
        for file in fs::read_dir(place.run(strategy).join("checkpoints/step-00000008")).expect("lists") {
            let file = file.expect("a file").file_name();
            if file.to_string_lossy().ends_with(".safetensors") {
                let read = |run: &str| {
                    fs::read(place.run(run).join("checkpoints/step-00000008").join(&file)).expect("reads")
                };
                assert!(read(strategy) == read(&name), "{strategy}: {file:?} differs");
            }
        }
        let report: Value =
            serde_json::from_str(&place.succeed(&format!("eval --json {name}"))).expect("is JSON");
        let last = measured.last().expect("something is measured");
        let (found, key) = (&report[last.trim_start_matches("test_")], whole.last().expect("steps"));
        let [found, expected] = [found, &key[*last]].map(|value| value.as_f64().expect("a number"));
        assert!((found - expected).abs() < 1e-4 * expected.abs(), "{strategy} {last}: {found} {expected}");
    }
}

#[test]
fn two_networks_with_an_optimizer_each() {
    let place =
        Example::new("own_gan", "--set train.steps=8 --set train.global_batch=16 --set train.ema=0.5");
    let measured = ["critic_loss", "generator_loss", "critic_lr", "generator_lr", "test_doubt"];
    trains_resumes_and_evaluates(&place, &measured);
    let last = metrics(&place.run("alone")).pop().expect("steps");
    assert!(last["critic_lr"].as_f64() < last["generator_lr"].as_f64(), "{last}");

    // Names of parameters begin with those of their networks, wherever they are seen.
    let index = fs::read_to_string(place.run("fsdp").join("checkpoints/step-00000008/checkpoint.json"))
        .expect("reads");
    for name in ["critic.0.weight", "generator.0.weight", "critic.optimizer_steps", "generator.ema_updates"] {
        assert!(index.contains(&format!("\"{name}\"")), "{name} is not in {index}");
    }
    place.succeed("export fsdp --out all.safetensors");
    let exported = phalanx_tensor::io::load_safetensors(&place.run("all.safetensors")).expect("reads");
    let names: Vec<&str> = exported.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"critic.4.bias") && names.contains(&"generator.4.bias"), "{names:?}");
    let plan: Value = serde_json::from_str(&place.succeed("plan --ranks 2 --json")).expect("is JSON");
    let count = |sizes: [usize; 4]| sizes.windows(2).map(|size| (size[0] + 1) * size[1]).sum::<usize>();
    assert_eq!(plan["parameters"], count([4, 32, 32, 2]) + count([2, 32, 32, 1]));
    let largest = plan["layout"]["largest_block"]["name"].as_str().expect("a name");
    assert!(largest.starts_with("generator.") || largest.starts_with("critic."), "{largest}");
}

/// Returns the warnings of a run, with their steps.
fn warnings(run: &Path) -> Vec<(u64, String)> {
    let of = |line: Value| {
        let step = line["step"].as_u64().expect("a step");
        let told = line["warnings"].as_array().cloned().unwrap_or_default();
        told.into_iter()
            .map(|problem| (step, problem.as_str().expect("a text").to_owned()))
            .collect::<Vec<_>>()
    };
    metrics(run).into_iter().flat_map(of).collect()
}

#[test]
fn networks_that_collapse_are_told_and_others_are_not() {
    let place = Example::new("own_gan", "--set train.steps=400 --set watch.window=50 --set log.every=100");
    // The generator stands still, so that the critic wins; then the critic does, and the generator finds its weakest point.
    let still = "--set generator.optim.lr=0 --set critic.optim.lr=1e-2";
    let greedy = "--set critic.optim.lr=0 --set generator.optim.lr=1e-2";
    for (name, settings, said) in [
        ("won", still, "the loss of phase `critic` was "),
        ("alike", greedy, "`diversity` of phase `critic` was "),
    ] {
        let out =
            place.succeed(&format!("train {} {settings} --set train.threads=1 --out {name}", place.settings));
        let found = warnings(&place.run(name));
        let (step, problem) = found.iter().find(|(_, problem)| problem.starts_with(said)).expect("is told");
        let log = log(&place.run(name), 0);
        let line = format!("step {step}: {problem}");
        assert!(log.contains(&line) && log.contains("WARN"), "{line} is not in {log}");
        assert!(out.contains(&format!("warning: {line}")), "{line} is not in {out}");
    }
    // It is the same on several ranks, and rank 0 tells it.
    place.train("two", &format!("--ranks 2 {greedy}"));
    let problems =
        |name: &str| warnings(&place.run(name)).into_iter().map(|(_, problem)| problem).collect::<Vec<_>>();
    assert!(
        problems("two").iter().any(|problem| problem.contains("samples are alike")),
        "{:?}",
        problems("two")
    );
    place.train("healthy", "");
    assert_eq!(warnings(&place.run("healthy")), []);
    place.train("unwatched", &format!("{greedy} --set watch.window=0"));
    assert_eq!(warnings(&place.run("unwatched")), []);
}

#[test]
fn keys_of_one_network_and_mistakes() {
    let place = Example::new("own_gan", "").place;
    let shown = place.succeed("config show --set model.noise=5");
    assert!(shown.contains("[critic.optim]\nlr = 0.001") && shown.contains("noise = 5"), "{shown}");
    assert!(shown.contains("# Numbers that the generator makes a point of."), "{shown}");
    for (line, expected) in [
        (
            "train --set critc.optim.lr=1",
            "the configuration has keys critc.…, but no network has that name; there is: `generator`, `critic`",
        ),
        ("train --set critic.optim.lr=-1", "optim.lr = -1 is negative"),
        ("train --set model.niose=3", "unknown key model.niose; did you mean model.noise?"),
        ("train somewhere", "there is no preset `somewhere`; `own_gan config list` lists the presets"),
        ("train --set model.kind=resnet18", "expected one of `gan`, found the string \"resnet18\""),
    ] {
        let said = place.fail(line);
        assert!(said.contains(expected), "{line}: {said}");
    }
}

#[test]
fn networks_begin_with_weights_and_are_frozen_by_their_names() {
    let place = Example::new("own_gan", "--set train.global_batch=16");
    let weights = |run: &str| {
        let file = format!("{run}.safetensors");
        place.succeed(&format!("export {run} --out {file}"));
        phalanx_tensor::io::load_safetensors(&place.run(&file)).expect("reads")
    };
    let values =
        |tensor: &Tensor| tensor.flatten_all().and_then(|all| all.to_vec1::<f32>()).expect("numbers");
    place.train("first", "--steps 3");
    let first = weights("first");
    for (ranks, strategy) in [(1, "ddp"), (2, "fsdp")] {
        let more = "--steps 3 --weights first --set critic.optim.freeze=[\"0\",\"2.bias\"] --set critic.optim.rates=[\"4=3\"]";
        place.train(strategy, &format!("{more} --ranks {ranks} --strategy {strategy}"));
        for ((name, before), (_, after)) in first.iter().zip(weights(strategy)) {
            let is_frozen = name.starts_with("critic.0.") || name == "critic.2.bias";
            assert_eq!(values(before) == values(&after), is_frozen, "{strategy}: {name}");
        }
    }
    for (line, expected) in [
        ("--set critic.optim.freeze=[\"5\"]", "`5` matches no parameter; there is: `generator.0`"),
        (
            "--weights first --set model.noise=5",
            "`generator.0.weight` has shape [32, 4], here it has [32, 5]",
        ),
    ] {
        let said = place.place.fail(&format!("train --steps 1 --out refused {line}"));
        assert!(said.contains(expected), "{line}: {said}");
    }
}

#[test]
fn sequences_of_different_lengths() {
    let settings =
        "--set data.path=text.txt --set train.steps=8 --set train.global_batch=8 --set optim.lr=0.01";
    let place = Example::new("own_language_model", settings);
    trains_resumes_and_evaluates(&place, &["loss", "lr", "test_loss"]);
    let losses: Vec<f64> =
        metrics(&place.run("alone")).iter().filter_map(|line| line["loss"].as_f64()).collect();
    assert!(losses[7] < losses[0], "it learns: {losses:?}");
}

#[test]
fn a_model_of_candle() {
    let settings = "--set train.steps=8 --set train.global_batch=16 --set optim.lr=0.02";
    let place = Example::new("own_candle_model", settings);
    trains_resumes_and_evaluates(&place, &["loss", "lr", "test_loss"]);
    let losses: Vec<f64> =
        metrics(&place.run("alone")).iter().filter_map(|line| line["loss"].as_f64()).collect();
    assert!(losses[7] < losses[0], "it learns: {losses:?}");
}
