//! Latent diffusion by the built program: a first stage that the same command trains, interruption, moving, drawing.

use std::fs;

use crate::harness::results::{checkpoint, losses};
use crate::harness::{Place, stderr};

/// A folder with the configurations of both stages.
fn place() -> Place {
    let place = Place::new().with("CANDLE_NUM_THREADS", "1");
    // A first stage of seconds; the settings of data and ranks come from the run that it is for.
    place.write(
        "stage.toml",
        "[model]\nkind = \"autoencoder-kl\"\nwidths = [8, 16]\ngroups = 4\n\n[train]\nglobal_batch = 8\nsteps = 12\n\n\
         [log]\nevery = 1\n",
    );
    place.write(
        "small.toml",
        "[model]\nkind = \"diffusion\"\nimage_size = 16\nlatent_images = true\nfirst_stage_preset = \"stage.toml\"\n\
         widths = [8, 16]\nattention = [false, true]\ngroups = 4\nheads = 2\ntext_width = 16\ntext_layers = 1\n\
         text_heads = 2\ntext_context = 12\nsample_steps = 4\n\n[data]\nkind = \"shapes\"\nimages = 64\n\
         test_images = 8\n\n[train]\nglobal_batch = 8\nsteps = 8\nema = 0.5\n\n[log]\nevery = 1\n\n[sample]\n\
         rows = 2\ncolumns = 2\n",
    );
    place
}

#[test]
fn one_command_trains_both_stages_and_goes_on_to_the_bit() {
    let place = place();
    let said = place.succeed_with_errors("train small.toml --ranks 2 --out whole");
    assert!(said.contains("before: autoencoder-kl in"), "{said}");
    let (whole, first) = (place.path("whole"), place.path("whole/first"));
    assert_eq!((losses(&first).len(), losses(&whole).len()), (12, 8));
    assert!(first.join("samples/step-00000012.png").is_file(), "what came back of pictures is shown");
    assert!(whole.join("samples/step-00000008.png").is_file() && whole.join("curves.svg").is_file());
    assert!(fs::read_to_string(whole.join("config.toml")).expect("reads").contains("whole/first"));

    // Stopped in the middle of the second stage, on other ranks.
    place.succeed("train small.toml --ranks 2 --steps 5 --out parts");
    let said = place.succeed_with_errors("train --resume --out parts --steps 8");
    assert!(!said.contains("before:"), "the first stage is there: {said}");
    let parts = place.path("parts");
    assert_eq!(losses(&parts), losses(&whole));
    let [ours, theirs] =
        [&parts, &whole].map(|run| fs::read(checkpoint(run, 8).join("model.safetensors")).expect("reads"));
    assert!(ours == theirs, "the weights differ");

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
    let said = place.succeed_with_errors("train --resume --out parts --steps 8");
    assert!(said.contains("before: autoencoder-kl in"), "{said}");

    // Moved as a whole, it is drawn from and measured all the same.
    fs::rename(&whole, place.path("moved")).expect("moves");
    let drawn = |options: &str, name: &str| {
        let prompts = ["--prompt", "a red circle", "--prompt", "a blue ring"];
        let mut command = place.command(&format!("sample moved --out {name} {options}"));
        let output = command.args(prompts).output().expect("phalanx runs");
        assert!(output.status.success(), "{options}: {}", stderr(&output));
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
    // Parts of prompts have weights.
    let of_red = |prompt: &str| {
        let prompts = ["--prompt", prompt, "--prompt", "a blue ring"];
        let output = place.command("sample moved --out red.png --no-captions").args(prompts).output();
        assert!(output.expect("phalanx runs").status.success(), "{prompt}");
        fs::read(place.path("red.png")).expect("a picture")
    };
    assert_eq!(of_red("a (red:1) circle"), of_red("a red circle"));
    assert_ne!(of_red("a (red:3) circle"), of_red("a red circle"));
    // Captions that are cut off are told.
    let said = place.succeed_with_errors(
        "train small.toml --ranks 1 --steps 1 --set model.first_stage=moved/first --set model.text_context=6 --out cut",
    );
    assert!(said.contains("the end of such captions is cut off (model.text_context = 6)"), "{said}");
    // A column of `--seeds` is the first of its seed, with both prompts below each other instead of abreast.
    drawn("--seeds 4,1 --scale 1 --no-captions", "seeds.png");
    drawn("--seed 1 --columns 1 --scale 1 --no-captions", "one.png");
    let [seeds, one] =
        ["seeds.png", "one.png"].map(|name| image::open(place.path(name)).expect("a picture").to_rgb8());
    let each = (seeds.width() - 2) / 2;
    let cell = |grid: &image::RgbImage, column: u32, row: u32| {
        image::imageops::crop_imm(grid, column * each + 2, row * each + 2, each - 2, each - 2).to_image()
    };
    for prompt in 0..2 {
        assert_eq!(cell(&seeds, 1, prompt), cell(&one, prompt, 0));
        assert_ne!(cell(&seeds, 0, prompt), cell(&one, prompt, 0));
    }
    let said = place.succeed("sample moved --prompt x --out x.png --seeds 1,2,3 --steps 4");
    assert!(said.contains("3 pictures in ") && said.contains("4 steps each"), "{said}");
    let said = place.succeed("explain moved --samples 8 --pictures 2");
    for part in
        ["tokens (192 numbers)", "chance", "8 held-out images, after step 8", "level of noise", "shape"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let explained = fs::read_to_string(place.path("moved/explain/explain.json")).expect("reads");
    let explained: serde_json::Value = serde_json::from_str(&explained).expect("JSON");
    assert_eq!(explained["levels"].as_array().map(Vec::len), Some(10), "{explained}");
    let found = &explained["features"][0]["accuracy"][4];
    assert!(found.as_f64().is_some_and(|found| (0.0..=1.0).contains(&found)), "{explained}");
    assert!(place.path("moved/explain/levels.svg").is_file());
    image::open(place.path("moved/explain/attention.png")).expect("a picture");
    let said = place.succeed("eval --json moved");
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert!(report["loss"].as_f64().is_some_and(|loss| loss > 0.0), "{said}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_trained() {
    let place = place();
    let refused = |line: &str, words: &str| {
        let said = place.fail(line);
        assert!(said.contains(words), "{line}: {said}");
    };
    refused("train small.toml --set model.heads=3", "model.heads 3 do not divide model.widths [8, 16]");
    refused(
        "train small.toml --set model.zero_snr=true",
        "need another model.prediction than epsilon, such as v_prediction",
    );
    refused("train small.toml --set model.schedule=flow", "such as v_prediction");
    refused(
        "train small.toml --set model.schedule=flow --set model.prediction=flow_prediction --set model.min_snr=5",
        "model.min_snr counts the end of a schedule",
    );
    refused("train small.toml --set model.attention=[true]", "model.attention is of 1 levels");
    refused("train small.toml --set model.sampler=dpm", "dpm-solver++");
    refused("train small.toml --set model.patch=0", "model.patch");
    refused(
        "train small.toml --set model.text_causal=false --set model.text_weights=clip.safetensors",
        "model.text_causal = false does not go with model.text_weights",
    );
    refused(
        "train small.toml --set model.latent_images=false --set model.patch=3",
        "model.patch = 3 does not divide model.image_size = 16",
    );
    refused("train small.toml --set model.noise_shift=0", "model.noise_shift = 0 is not a number above 0");
    refused("train small.toml --set model.sample_steps=1001", "model.sample_steps 1001");
    refused("train small.toml --set data.normalise=imagenet", "draws from -1 to 1");
    refused("train small.toml --set model.first_stage=gone --out gone-run", "gone holds no run");
    refused("train small.toml --set model.first_stage_preset=none --out none-run", "none");
    let said = place.succeed("train small.toml --dry-run");
    assert!(said.contains("before: stage.toml, whose folder model.first_stage then names"), "{said}");
    assert!(said.contains("diffusion of 4 x 8x8 latent images"), "{said}");
    let said = place.succeed("plan small.toml --ranks 2");
    assert!(said.contains("diffusion of 4 x 8x8 latent images"), "{said}");
    let said =
        place.succeed("train small.toml --dry-run --set model.latent_images=false --set model.patch=4");
    assert!(said.contains("diffusion of 3 x 16x16 pixels in patches of 4x4"), "{said}");
    place.succeed("train tiny-gpt --ranks 1 --steps 1 --out words --set eval.enabled=false");
    assert!(place.fail("explain words").contains("a `gpt2` cannot be explained"));
    // Other trainings draw samples and nothing else.
    place.succeed("train tiny --ranks 1 --steps 2 --out cvae");
    // Two models side by side: two rows of two columns, of the larger size.
    place.succeed("train small.toml --set model.latent_images=false --ranks 1 --steps 1 --out pixels");
    let side_by_side = "sample cvae pixels --prompt one --prompt two --out both.png --scale 1";
    let said = place.succeed(side_by_side);
    assert!(said.contains("cvae (weights after step") && said.contains("pixels (weights"), "{said}");
    let size = |name: &str| image::open(place.path(name)).expect("a picture").to_rgb8().dimensions();
    let with_texts = size("both.png");
    place.succeed(&format!("{side_by_side} --no-captions"));
    let (width, height) = size("both.png");
    assert!(
        width == height && with_texts.0 == width && with_texts.1 > height,
        "{with_texts:?} {width} {height}"
    );
    let said = place.fail("sample cvae pixels --prompt x --out x.png --seeds 1,2");
    assert!(said.contains("--seeds is for one run"), "{said}");
    let said = place.fail("sample cvae gone --prompt x --out x.png");
    assert!(said.contains("gone: no such file or folder") && !said.contains("a minute"), "{said}");
    let said = place.fail("sample cvae pixels --prompt x --out x.png --steps 4");
    assert!(said.contains("model.sample_steps"), "{said}");
    let said = place.fail("sample cvae --prompt x --out x.png --strip");
    assert!(said.contains("generates samples of prompts only"), "{said}");
}
