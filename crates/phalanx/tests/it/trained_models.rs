//! Trained models in use: predictions, exports, and exports that are read back.

use std::fs;
use std::path::Path;

use candle_core::Tensor;
use image::{Rgb, RgbImage};
use phalanx_tensor::io::{load_safetensors, save_safetensors};
use serde_json::Value;

use crate::harness::results::{checkpoint, contents, json};
use crate::harness::{MLP, Place, both, stderr};

/// The classes of the images.
const CLASSES: [&str; 2] = ["cool", "warm"];

/// Writes images of two classes, blue and red, which are easy to tell apart: 12 of each for training and 5 for testing, as
/// PNG and JPEG of different sizes.
fn images(root: &Path) {
    for (label, class) in CLASSES.into_iter().enumerate() {
        for number in 0..17_u32 {
            let split = if number < 12 { "train" } else { "test" };
            let colour = move |x: u32, y: u32| {
                let shade = (150 + 5 * number + x + y) as u8;
                Rgb(if label == 0 { [20, 60, shade] } else { [shade, 60, 20] })
            };
            let image = RgbImage::from_fn(20 + number, 18, colour);
            let ending = if number % 3 == 0 { "png" } else { "jpg" };
            let file = root.join(format!("{split}/{class}/{number:02}.{ending}"));
            fs::create_dir_all(file.parent().expect("a folder")).expect("creates");
            image.save(&file).expect("writes");
        }
    }
}

/// Trains a small ResNet on the images, with another normalisation than the default, a resize and a crop.
fn trained() -> Place {
    let place = Place::new();
    images(&place.path("images"));
    let model = "--set model.kind=resnet18 --set model.width=8 --set model.image_size=16";
    let data = "--data folder=images --set data.normalise=imagenet --set data.resize=18 \
        --set data.resize_mode=shorter-side --set data.resize_filter=bicubic";
    let train = "--set train.global_batch=8 --set train.epochs=3 --set train.steps=0 --set optim.lr=0.01 --set eval.batch=3";
    place.succeed(&format!("train tiny {model} {data} {train} --ranks 1 --out run"));
    place
}

fn measures(place: &Place, line: &str) -> (f64, f64) {
    let report: Value = serde_json::from_str(&place.succeed(&format!("{line} --json"))).expect("JSON");
    let number = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("{line}: {report}"));
    (number("loss"), number("accuracy"))
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn an_export_is_judged_and_predicts_as_its_run() {
    let place = trained();
    let of_run = measures(&place, "eval run");
    let summary = json(&place.path("run/summary.json"));
    assert_eq!(summary["metrics"]["test_accuracy"].as_f64(), Some(of_run.1));
    place.succeed("export run --out model.safetensors");
    let shown = place.succeed("export run --out hub/");
    assert!(shown.contains("hub/ (") && shown.contains("after step 9"), "{shown}");
    let newest = "run/checkpoints/step-00000009";
    for model in ["model.safetensors", "hub", "hub/model.safetensors"] {
        assert_eq!(measures(&place, &format!("eval {model} --data folder=images")), of_run, "{model}");
        let weights = format!("eval --model resnet18 --weights {model} --data folder=images");
        assert_eq!(measures(&place, &weights), of_run, "{weights}");
    }
    assert_eq!(measures(&place, &format!("eval {newest}")), of_run);
    // Another program drops the metadata of the file: the description next to it counts.
    let weights = load_safetensors(&place.path("hub/model.safetensors")).expect("reads");
    save_safetensors(&place.path("hub/model.safetensors"), &weights, &[]).expect("writes");
    assert_eq!(measures(&place, "eval hub --data folder=images"), of_run);

    // Predictions of all of them are the same, and right as often as the evaluation says.
    let predicted = place.succeed("predict run images/test --json --top 2");
    for model in ["model.safetensors", "hub", newest] {
        assert_eq!(
            place.succeed(&format!("predict {model} images/test --json --top 2")),
            predicted,
            "{model}"
        );
    }
    let predicted = lines(&predicted);
    let files: Vec<&str> = predicted.iter().filter_map(|line| line["file"].as_str()).collect();
    assert!(files.len() == 10 && files.is_sorted(), "{files:?}");
    let is_right = |line: &&Value| {
        line["file"].as_str().expect("a file").contains(line["class"].as_str().expect("a class"))
    };
    let right = predicted.iter().filter(is_right).count();
    assert!((right as f64 / 10.0 - of_run.1).abs() < 1e-9 && right > 0, "{right} {of_run:?}");
    for line in &predicted {
        let top = line["top"].as_array().expect("classes");
        let sum: f64 = top.iter().filter_map(|class| class["probability"].as_f64()).sum();
        assert!(top.len() == 2 && (sum - 1.0).abs() < 1e-9 && top[0]["class"] == line["class"], "{line}");
    }
    exported_parts(&place);
    refused(&place);
}

/// Checks the files of the exported folder, and the ONNX model of the run and of its export.
fn exported_parts(place: &Place) {
    let config = json(&place.path("hub/config.json"));
    assert_eq!(config["id2label"]["1"], "warm");
    assert_eq!(config["label2id"]["cool"], 0);
    assert_eq!(config["architecture"], "phalanx/resnet18", "no library has a ResNet of this width");
    assert!(config.get("pretrained_cfg").is_none());
    let images = json(&place.path("hub/preprocessor_config.json"));
    assert_eq!((&images["size"]["shortest_edge"], &images["crop_size"]["height"]), (&18.into(), &16.into()));
    assert_eq!((images["resample"].as_i64(), images["image_mean"][0].as_f64()), (Some(3), Some(0.485)));
    let card = fs::read_to_string(place.path("hub/README.md")).expect("a card");
    for part in ["# run", "cool, warm", "| accuracy | ", "No Python library", "optim.lr = 0.01"] {
        assert!(card.contains(part), "{part}: {card}");
    }
    let shown = place.succeed("export run --out model.onnx --check check.safetensors");
    assert!(shown.contains("images to logits") && shown.contains("check.safetensors"), "{shown}");
    place.succeed("export model.safetensors --out again.onnx");
    let read = |name: &str| fs::read(place.path(name)).expect("reads");
    assert!(read("model.onnx") == read("again.onnx"), "an export of an export is the same");
    let check = load_safetensors(&place.path("check.safetensors")).expect("reads");
    let shapes: Vec<_> = check.iter().map(|(name, values)| (name.as_str(), values.dims().to_vec())).collect();
    assert_eq!(shapes, [("images", vec![5, 3, 16, 16]), ("logits", vec![5, 2])]);
}

/// Checks what is refused, with its exit code.
fn refused(place: &Place) {
    place.write("plain.txt", "no image");
    fs::create_dir_all(place.path("none")).expect("creates");
    let weights = load_safetensors(&place.path("model.safetensors")).expect("reads");
    save_safetensors(&place.path("foreign.safetensors"), &weights, &[]).expect("writes");
    for (code, line, words) in [
        (2, "eval model.safetensors", "is an exported model, which names no images; add --data"),
        (
            2,
            "eval model.safetensors --data folder=images --set data.normalise=unit",
            "data.normalise = \"unit\": the model was trained with \"imagenet\"",
        ),
        (2, "eval run --set data.normalise=unit", "the model was trained with \"imagenet\""),
        (2, "eval --model mlp --weights model.safetensors --data folder=images", "holds a `resnet18`"),
        (2, "eval foreign.safetensors --data folder=images", "does not describe its model"),
        (1, "eval run --judge run", "quality.judges are given, but a `resnet18` draws no pictures"),
        (2, "eval nowhere", "nowhere: no such file or folder"),
        (2, "eval none --data folder=images", "is no run (config.toml), no checkpoint"),
        (2, "predict foreign.safetensors images/test", "does not describe its model"),
        (1, "predict run none", "nothing recognised here; looked for images (.png"),
        (1, "predict run images/test --top 3", "the 3 most probable classes are asked for, and there are 2"),
        (2, "predict run images/test --top 0", "--top"),
        (2, "predict run images/test --device gpu", "--device gpu: train.device"),
        (
            2,
            "predict run images/test --grid doubt.gif",
            "--grid doubt.gif: the file is written as .png, .jpg or .jpeg",
        ),
        (2, "export run --out model.pt", "an export is written as .safetensors or .onnx, or as a folder"),
        (2, "export run --out model.onnx --format safetensors", "--format safetensors does not fit"),
        (2, "export run --out model.safetensors --check c.safetensors", "--check is for ONNX"),
        (2, "export run --out m.onnx --check c.json", "--check c.json: the file is written as .safetensors"),
        (1, "export run --out ema.safetensors --ema", "it holds no averages"),
        (1, "export run --out ema.onnx --ema", "holds no averages"),
        (2, "export run --out run/", "this is a run's folder"),
        (1, "sample run --prompt x --out x.png", "draws no pictures"),
        (2, "sample run --prompt x --out x.png --guidance 9", "model.guidance"),
        (2, "sample run --prompt x --out x.pdf", "--out x.pdf: the file is written as .png, .jpg or .jpeg"),
        (2, "report run --out page.pdf", "--out page.pdf: the file is written as .html"),
    ] {
        let output = place.output(line);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(words), "{line}: {said}");
    }
    for left in ["model.pt", "ema.onnx", "ema.safetensors", "x.png", "page.pdf", "c.safetensors"] {
        assert!(!place.path(left).exists(), "{left}");
    }
    let said = both(&place.output(
        "eval --model resnet18 --weights foreign.safetensors --data folder=images --set model.width=8",
    ));
    assert!(
        said.contains("note: foreign.safetensors describes no images; assumed model.image_size = "),
        "{said}"
    );
    let said = both(&place.output("eval model.safetensors --data folder=images --set data.resize=17"));
    assert!(
        said.contains("note: data.resize = 17; the model was trained with 18") && said.contains("accuracy"),
        "{said}"
    );
    // A label must mean the same class.
    fs::rename(place.path("images"), place.path("swapped")).expect("moves");
    for split in ["train", "test"] {
        fs::rename(place.path(&format!("swapped/{split}/warm")), place.path(&format!("swapped/{split}/a")))
            .expect("moves");
    }
    let said = place.fail_with(1, "eval model.safetensors --data folder=swapped");
    assert!(said.contains("label 0 is `a` for testing and `cool` for training"), "{said}");
}

#[test]
fn files_that_cannot_be_read_are_listed_and_the_others_predicted() {
    let place = Place::new();
    place.succeed(&format!("train tiny {MLP} --ranks 1 --steps 3 --out run"));
    images(&place.path("images"));
    let jpeg = fs::read(place.path("images/test/warm/13.jpg")).expect("reads");
    place.write("images/test/warm/cut.jpg", &jpeg[..jpeg.len() / 2]);
    place.write("images/test/.hidden.png", "hidden");
    place.write("images/test/notes.txt", "no image");
    let output = place.output("predict run images/test nowhere.png --json --batch 4 --grid doubt.png");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(lines(&String::from_utf8_lossy(&output.stdout)).len(), 10);
    for words in [
        "unreadable: images/test/warm/cut.jpg: truncated",
        "unreadable: nowhere.png: No such file",
        "2 files are unreadable; the other 10 images are predicted",
        "doubt.png (the 10 least sure of 10 images)",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let grid = image::open(place.path("doubt.png")).expect("a picture").to_rgb8();
    // Ten pictures of 8 pixels, eight abreast, magnified by 12, with lines for captions.
    assert!(
        grid.width() == 12 * (8 * 10 + 2) && grid.height() > 12 * (2 * 10 + 2),
        "{:?}",
        grid.dimensions()
    );
    // The table has a row for each image; any batch gives the same.
    let table = place.succeed("predict run images/test/cool --batch 1");
    assert_eq!(table, place.succeed("predict run images/test/cool --batch 5"));
    let row = table.lines().next().expect("a row");
    assert!(row.starts_with("images/test/cool/12.png  ") && row.ends_with(" %"), "{row}");
    assert_eq!(table.lines().count(), 5);
    let said = place.fail_with(1, "predict run nowhere.png");
    assert!(said.contains("1 file is unreadable, and none is predicted"), "{said}");
    place.succeed("train tiny --ranks 1 --steps 2 --out cvae");
    let said = place.fail_with(1, "predict cvae images/test");
    assert!(said.contains("a `cvae` predicts no classes of images"), "{said}");
    let said = place.fail_with(1, "export cvae --out model.onnx");
    assert!(said.contains("a `cvae` has no forward pass to export to ONNX"), "{said}");
}

/// A tensor under another program's name.
fn renamed(pairs: &[(&str, &str)], name: &str) -> String {
    pairs.iter().fold(name.to_owned(), |name, (here, there)| name.replace(here, there))
}

/// Weights of a Vision Transformer under the names of timm.
fn of_timm(weights: &[(String, Tensor)]) -> Vec<(String, Tensor)> {
    let pairs = [
        ("encoder.layers.encoder_layer_", "blocks."),
        ("encoder.pos_embedding", "pos_embed"),
        ("encoder.ln", "norm"),
        ("ln_1", "norm1"),
        ("ln_2", "norm2"),
        ("self_attention.in_proj_", "attn.qkv."),
        ("self_attention.out_proj", "attn.proj"),
        ("mlp.0", "mlp.fc1"),
        ("mlp.3", "mlp.fc2"),
        ("conv_proj", "patch_embed.proj"),
        ("heads.head", "head"),
        ("class_token", "cls_token"),
    ];
    weights.iter().map(|(name, values)| (renamed(&pairs, name), values.clone())).collect()
}

/// Weights of a Vision Transformer under the names of transformers, which has queries, keys and values apart.
fn of_hugging_face(weights: &[(String, Tensor)]) -> Vec<(String, Tensor)> {
    let pairs = [
        ("encoder.layers.encoder_layer_", "vit.encoder.layer."),
        ("encoder.pos_embedding", "vit.embeddings.position_embeddings"),
        ("encoder.ln", "vit.layernorm"),
        ("ln_1", "layernorm_before"),
        ("ln_2", "layernorm_after"),
        ("self_attention.out_proj", "attention.output.dense"),
        ("mlp.0", "intermediate.dense"),
        ("mlp.3", "output.dense"),
        ("conv_proj", "vit.embeddings.patch_embeddings.projection"),
        ("heads.head", "classifier"),
        ("class_token", "vit.embeddings.cls_token"),
    ];
    let mut there = Vec::new();
    for (name, values) in weights {
        let name = renamed(&pairs, name);
        let Some((layer, tensor)) = name.split_once("self_attention.in_proj_") else {
            there.push((name, values.clone()));
            continue;
        };
        for (part, values) in ["query", "key", "value"].into_iter().zip(values.chunk(3, 0).expect("three")) {
            let values = values.contiguous().expect("copies");
            there.push((format!("{layer}attention.attention.{part}.{tensor}"), values));
        }
    }
    there
}

#[test]
fn a_vision_transformer_is_exported_and_reads_weights_of_other_programs() {
    let place = Place::new();
    let small = "tiny --set model.kind=vit --set model.width=12 --set model.layers=2 --set data.images=32 --set data.test_images=8";
    place.succeed(&format!("train {small} --ranks 1 --steps 3 --out run"));
    place.succeed("export run --out hub/");
    let card = fs::read_to_string(place.path("hub/README.md")).expect("a card");
    assert!(card.contains("VisionTransformer(16, 4, 2, 3, 12, 48, num_classes="), "{card}");
    let shown = place.succeed("export run --out model.onnx --check check.safetensors");
    assert!(shown.contains("images to logits"), "{shown}");

    let weights = load_safetensors(&place.path("hub/model.safetensors")).expect("reads");
    let expected = contents(&checkpoint(&place.path("run"), 3));
    for (program, tensors) in [("timm", of_timm(&weights)), ("hugging-face", of_hugging_face(&weights))] {
        let file = format!("{program}.safetensors");
        save_safetensors(&place.path(&file), &tensors, &[]).expect("writes");
        for (ranks, strategy) in [(1, "ddp"), (3, "fsdp")] {
            let run = format!("{program}-{strategy}");
            place.succeed(&format!(
                "train {small} --ranks {ranks} --strategy {strategy} --steps 1 --set optim.lr=0 --set optim.weight_decay=0 \
                 --set checkpoint.every=1 --weights {file} --out {run}"
            ));
            let record = json(&place.path(&format!("{run}/weights.json")));
            assert_eq!((&record["new"], &record["left"]), (&serde_json::json!([]), &serde_json::json!([])));
            let found = contents(&checkpoint(&place.path(&run), 1));
            for name in expected.keys().filter(|name| name.starts_with("model ")) {
                assert!(found[name] == expected[name], "{run}: {name}");
            }
        }
    }
    // Positions of larger images lie between those of smaller ones; another size of patches is another network.
    let larger = "--set model.image_size=32";
    for (ranks, strategy) in [(1, "ddp"), (2, "fsdp")] {
        place.succeed(&format!(
            "train {small} {larger} --ranks {ranks} --strategy {strategy} --steps 1 --set optim.lr=0 --set optim.weight_decay=0 \
             --set checkpoint.every=1 --weights timm.safetensors --out larger-{strategy}"
        ));
    }
    let [one, shards] =
        ["ddp", "fsdp"].map(|name| contents(&checkpoint(&place.path(&format!("larger-{name}")), 1)));
    let positions = "model encoder.pos_embedding";
    assert_eq!(one[positions].0, [1, 65, 12]);
    assert!(one[positions] == shards[positions] && one[positions] != expected[positions]);
    let said = place.fail(&format!(
        "train {small} --ranks 1 --steps 1 --set model.patch=8 --weights timm.safetensors --out other"
    ));
    for words in ["`conv_proj.weight` has shape [12, 3, 4, 4]", "model.patch is the size of a patch"] {
        assert!(said.contains(words), "{said}");
    }
    let said =
        place.fail(&format!("train {small} --ranks 1 --set model.patch=3 --set model.heads=5 --out other"));
    for words in [
        "model.patch = 3 does not divide model.image_size = 16",
        "model.heads = 5 does not divide model.width = 12",
    ] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn attributes_and_autoencoders_are_exported_and_every_attribute_is_answered() {
    let place = Place::new();
    let small = "--set model.image_size=16 --set data.images=32 --set data.test_images=8 --set sample.rows=1";
    place.succeed(&format!(
        "train tiny --set model.kind=attributes --set model.width=4 {small} --ranks 1 --steps 2 --out seen"
    ));
    images(&place.path("images"));
    let answered = lines(&place.succeed("predict seen images/test/cool/12.png --json"));
    for attribute in ["shape", "colour", "size", "place", "background"] {
        assert!(
            answered[0][attribute]["probability"].as_f64().is_some_and(|part| part <= 1.0),
            "{answered:?}"
        );
    }
    let shown = place.succeed("export seen --out seen.onnx");
    assert!(shown.contains("images to shape, colour, size, place, background"), "{shown}");
    let widths = "--set model.kind=autoencoder-kl --set model.widths=[8,16] --set model.groups=4";
    place.succeed(&format!("train tiny {widths} {small} --ranks 1 --steps 2 --out encoder"));
    let shown = place.succeed("export encoder --out decoder.onnx --check decoder.safetensors");
    assert!(shown.contains("latents to images"), "{shown}");
    place.fail_with(2, "export encoder --out encoder/");
    place.succeed("export encoder --out decoder/");
    let card = fs::read_to_string(place.path("decoder/README.md")).expect("a card");
    assert!(card.contains("from diffusers import AutoencoderKL") && card.contains("[8, 16]"), "{card}");
}

#[test]
fn grids_have_captions_and_scales() {
    let place = Place::new();
    place.succeed("train tiny --ranks 1 --steps 2 --out run");
    place.succeed("export run --out model.safetensors");
    let drawn = |options: &str| {
        let mut command = place.command(&format!("sample run --out grid.png {options}"));
        let output =
            command.args(["--prompt", "a red circle", "--prompt", "a blue ring"]).output().expect("runs");
        assert!(output.status.success(), "{options}: {}", stderr(&output));
        image::open(place.path("grid.png")).expect("a picture").to_rgb8()
    };
    // Four pictures of 16 pixels in each of two rows, with borders of 2.
    let (width, height) = (4 * 18 + 2, 2 * 18 + 2);
    assert_eq!(drawn("--no-captions --scale 1").dimensions(), (width, height));
    assert_eq!(drawn("--no-captions --scale 3").dimensions(), (3 * width, 3 * height));
    assert_eq!(drawn("--no-captions").dimensions(), (4 * width, 4 * height));
    let captioned = drawn("");
    assert!(captioned.width() == 4 * width && captioned.height() > 4 * height);
    let of_export = || {
        let mut command = place.command("sample model.safetensors --out other.png");
        let output =
            command.args(["--prompt", "a red circle", "--prompt", "a blue ring"]).output().expect("runs");
        assert!(output.status.success(), "{}", stderr(&output));
        image::open(place.path("other.png")).expect("a picture").to_rgb8()
    };
    assert!(of_export() == captioned, "an exported model draws the same");
    drawn("--no-captions");
    place.succeed("sample run --prompt red --out grid.jpg");
    assert!(fs::read(place.path("grid.jpg")).expect("reads").starts_with(b"\xff\xd8\xff"));
    for (line, words) in [
        ("sample run --prompt x --out x.png --guidance 9", "model.guidance"),
        ("sample run --prompt x --out x.png --steps 3", "model.sample_steps"),
        ("sample run --prompt x --out x.png --eta 0.5", "model.eta"),
        ("sample run --prompt x --out x.png --scale 0", "--scale"),
        ("sample run --out x.png", "--prompt"),
    ] {
        let said = place.fail_with(2, line);
        assert!(said.contains(words), "{line}: {said}");
    }
    let said = place.fail_with(1, "sample run --prompt x --out x.png --strip");
    assert!(said.contains("generates samples of prompts only"), "{said}");
}
