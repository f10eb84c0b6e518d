//! Latent diffusion by the built program: a first stage that the same command trains, interruption, moving, drawing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("a folder"));
        // A first stage of seconds; the settings of data and ranks come from the run that it is for.
        fs::write(
            place.path("stage.toml"),
            "[model]\nkind = \"autoencoder-kl\"\nwidths = [8, 16]\ngroups = 4\n\n[train]\nglobal_batch = 8\nsteps = 12\n\n\
             [log]\nevery = 1\n",
        )
        .expect("writes");
        fs::write(
            place.path("small.toml"),
            "[model]\nkind = \"diffusion\"\nimage_size = 16\nlatent_images = true\nfirst_stage_preset = \"stage.toml\"\n\
             widths = [8, 16]\nattention = [false, true]\ngroups = 4\nheads = 2\ntext_width = 16\ntext_layers = 1\n\
             text_heads = 2\ntext_context = 12\nsample_steps = 4\n\n[data]\nkind = \"shapes\"\nimages = 64\n\
             test_images = 8\n\n[train]\nglobal_batch = 8\nsteps = 8\nema = 0.5\n\n[log]\nevery = 1\n\n[sample]\n\
             rows = 2\ncolumns = 2\n",
        )
        .expect("writes");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn output(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(line.split(' ').filter(|part| !part.is_empty()));
        command.env("CANDLE_NUM_THREADS", "1").current_dir(self.0.path()).output().expect("phalanx runs")
    }

    fn succeed(&self, line: &str) -> String {
        let output = self.output(line);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}: {out}\n{err}");
        out.into_owned()
    }
}

/// The losses of a run as they are written.
fn losses(run: &Path) -> Vec<(u64, f64)> {
    let lines = fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("is JSON"));
    lines.filter_map(|line| Some((line["step"].as_u64()?, line["loss"].as_f64()?))).collect()
}

fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("checkpoints/step-00000008/model.safetensors")).expect("a checkpoint")
}

#[test]
fn one_command_trains_both_stages_and_goes_on_to_the_bit() {
    let place = Place::new();
    let said = place.succeed("train small.toml --ranks 2 --out whole");
    assert!(said.contains("before: autoencoder-kl in"), "{said}");
    let (whole, first) = (place.path("whole"), place.path("whole/first"));
    assert_eq!((losses(&first).len(), losses(&whole).len()), (12, 8));
    assert!(first.join("samples/step-00000012.png").is_file(), "what came back of pictures is shown");
    assert!(whole.join("samples/step-00000008.png").is_file() && whole.join("curves.svg").is_file());
    assert!(fs::read_to_string(whole.join("config.toml")).expect("reads").contains("whole/first"));

    // Stopped in the middle of the second stage, on other ranks.
    place.succeed("train small.toml --ranks 2 --steps 5 --out parts");
    let said = place.succeed("train --resume --out parts --steps 8");
    assert!(!said.contains("before:"), "the first stage is there: {said}");
    let parts = place.path("parts");
    assert_eq!(losses(&parts), losses(&whole));
    assert_eq!(weights(&parts), weights(&whole));

    place.succeed(
        "train small.toml --ranks 1 --steps 1 --set model.first_stage_set=[\"train.steps=3\"] --out short",
    );
    assert_eq!(losses(&place.path("short/first")).len(), 3);

    // A first stage that is there is taken; one that was interrupted is finished.
    place.succeed(&format!(
        "train small.toml --ranks 1 --set model.first_stage={} --out given",
        first.display()
    ));
    for ((_, given), (_, whole)) in losses(&place.path("given")).iter().zip(losses(&whole)) {
        assert!((given - whole).abs() < 1e-4 * whole, "{given} {whole}");
    }
    assert!(!place.path("given/first").exists());
    fs::remove_file(place.path("parts/first/summary.json")).expect("removes");
    let said = place.succeed("train --resume --out parts --steps 8");
    assert!(said.contains("before: autoencoder-kl in"), "{said}");

    // Moved as a whole, it is drawn from and measured all the same.
    fs::rename(&whole, place.path("moved")).expect("moves");
    let drawn = |options: &str, name: &str| {
        let prompts = ["--prompt", "a red circle", "--prompt", "a blue ring"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(["sample", "--run", "moved", "--out", name]).args(prompts);
        command.args(options.split(' ').filter(|part| !part.is_empty())).current_dir(place.0.path());
        let output = command.output().expect("runs");
        assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
        fs::read(place.path(name)).expect("a picture")
    };
    let plain = drawn("", "plain.png");
    assert_eq!(drawn("--seed 0", "again.png"), plain);
    let others = [
        "--seed 1",
        "--steps 3",
        "--guidance 6",
        "--sampler euler",
        "--strip",
        "--between texts",
        "--between noises --columns 3",
        "--image plain.png --strength 0.5",
        "--image plain.png --mask again.png",
    ];
    for options in others {
        assert_ne!(drawn(options, "other.png"), plain, "{options}");
    }
    let said = place.succeed("eval --run moved");
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert!(report["loss"].as_f64().is_some_and(|loss| loss > 0.0), "{said}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_trained() {
    let place = Place::new();
    let refused = |line: &str, words: &str| {
        let output = place.output(line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{line}: {said}");
    };
    refused("train small.toml --set model.heads=3", "model.heads 3 do not divide model.widths [8, 16]");
    refused(
        "train small.toml --set model.zero_snr=true",
        "model.zero_snr needs model.prediction v_prediction",
    );
    refused("train small.toml --set model.attention=[true]", "model.attention is of 1 levels");
    refused("train small.toml --set model.sampler=dpm", "dpm-solver++");
    refused("train small.toml --set model.sample_steps=1001", "model.sample_steps 1001");
    refused("train small.toml --set data.normalise=imagenet", "draws from -1 to 1");
    refused("train small.toml --set model.first_stage=gone --out gone-run", "gone holds no run");
    refused("train small.toml --set model.first_stage_preset=none --out none-run", "none");
    let said = place.succeed("train small.toml --dry-run");
    assert!(said.contains("before: stage.toml, whose folder model.first_stage then names"), "{said}");
    assert!(said.contains("diffusion of 4 x 8x8 latent images"), "{said}");
    let said = place.succeed("plan small.toml --ranks 2");
    assert!(said.contains("diffusion of 4 x 8x8 latent images"), "{said}");
    // Other trainings draw samples and nothing else.
    place.succeed("train tiny --ranks 1 --steps 2 --out cvae");
    let output = Command::new(env!("CARGO_BIN_EXE_phalanx"))
        .args(["sample", "--run", "cvae", "--prompt", "x", "--out", "x.png", "--strip"])
        .current_dir(place.0.path())
        .output()
        .expect("runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("generates samples of prompts only"));
}
