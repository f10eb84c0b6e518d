//! Published models with files of their own: adapters of peft, and the tokenizers of Marian.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::Place;
use crate::harness::results::copy;

/// A language model whose steps take milliseconds.
const GPT: &str = "train tiny-gpt --ranks 1 --set model.layers=2 --set model.width=16 --set model.heads=2 --set model.context=16 \
                   --set model.texts=40 --set train.global_batch=8 --set train.threads=1 --set schedule.warmup_steps=0 \
                   --set optim.lr=0.05 --set eval.enabled=false --steps 0";

#[test]
fn adapters_of_peft_are_used_with_the_model_that_they_change() {
    let place = Place::new();
    place.succeed(&format!("{GPT} --set train.steps=20 --out first"));
    place.succeed("export first --out base/");
    let from = "--set model.config=base --set model.weights=base --set lora.rank=2 --set lora.layers=[\"c_attn\",\"c_fc\"]";
    place.succeed(&format!("{GPT} {from} --set train.steps=6 --out tuned"));
    place.succeed("export tuned --out merged/");
    place.succeed("export tuned --out adapters/ --adapters");
    let written = |model: &str| {
        let line = format!("write {model} --prompt two --temperature 0 --tokens 12 --json");
        let line: Value = serde_json::from_str(place.succeed(&line).trim()).expect("a line of JSON");
        line["text"].as_str().expect("a text").to_owned()
    };
    let (base, merged) = (written("base"), written("merged"));
    assert_eq!(written("adapters"), merged);
    assert_ne!(base, merged, "the adapters change what is written");
    place.write("seen.txt", "two small cats see a bird .\n".repeat(60));
    let loss = |model: &str| {
        let line = format!("eval {model} --set data.path=seen.txt --set model.context=16 --json");
        let measures: Value = serde_json::from_str(place.succeed(&line).trim()).expect("JSON");
        measures["loss"].as_f64().expect("a number")
    };
    let losses = ["adapters", "merged"].map(loss);
    assert!((losses[0] - losses[1]).abs() < 1e-5, "{losses:?}");
    // The model is found from the folder of the adapters, too, and its absence is told.
    let description = place.path("adapters/adapter_config.json");
    let rename = |base: &str| {
        let text = std::fs::read_to_string(&description).expect("written");
        let mut json: Value = serde_json::from_str(&text).expect("JSON");
        json["base_model_name_or_path"] = base.into();
        std::fs::write(&description, json.to_string()).expect("written");
    };
    rename("../base");
    assert_eq!(written("adapters"), merged);
    // A folder of that name without a model does not hide it.
    copy(&place.path("base"), &place.path("adapters/near"));
    std::fs::create_dir(place.path("near")).expect("makes");
    rename("near");
    assert_eq!(written("adapters"), merged);
    rename("someone/a-model");
    let said = place.fail("write adapters --prompt two");
    assert!(
        said.contains("base_model_name_or_path is \"someone/a-model\", which is no folder here"),
        "{said}"
    );
    rename("../adapters");
    let said = place.fail("write adapters --prompt two");
    assert!(said.contains("has no config.json of a model that is known"), "{said}");
}

#[test]
fn a_translation_with_adapters_is_that_of_the_merged_model() {
    let place = Place::new();
    let small = "train tiny-translation --ranks 1 --set model.layers=1 --set model.width=16 --set model.heads=2 \
                 --set train.global_batch=8 --set train.threads=1 --set schedule.warmup_steps=0 --set optim.lr=0.02 \
                 --set eval.enabled=false --steps 0";
    place.succeed(&format!("{small} --set train.steps=30 --out first"));
    place.succeed("export first --out base/");
    let from = "--set model.config=base --set model.weights=base --set lora.rank=2 --set lora.layers=[\"q_proj\",\"fc1\"]";
    place.succeed(&format!("{small} {from} --set optim.lr=0.2 --set train.steps=10 --out tuned"));
    place.succeed("export tuned --out merged/");
    place.succeed("export tuned --out adapters/ --adapters");
    let text = std::fs::read_to_string(place.path("adapters/adapter_config.json")).expect("written");
    let mut json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["task_type"], "SEQ_2_SEQ_LM");
    json["base_model_name_or_path"] = "../base".into();
    place.write("adapters/adapter_config.json", json.to_string());
    let translated = |model: &str| -> Vec<Value> {
        let said = place.succeed(&format!("translate {model} two red --json --tokens 6 --beams 2"));
        said.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    };
    let [base, merged, adapted] = ["base", "merged", "adapters"].map(translated);
    assert_eq!(adapted.len(), 2);
    for ((base, merged), adapted) in base.iter().zip(&merged).zip(&adapted) {
        assert_eq!(adapted["translation"], merged["translation"]);
        let score = |line: &Value| line["score"].as_f64().expect("a number");
        assert!((score(adapted) - score(merged)).abs() < 1e-5, "{adapted} {merged}");
        assert!((score(base) - score(merged)).abs() > 1e-3, "the adapters change what is translated");
    }
}

/// The tokenizer of a small Marian model.
fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/marian")
}

#[test]
fn a_translation_model_keeps_the_files_of_its_published_tokenizer() {
    let place = Place::new();
    for name in ["source.spm", "target.spm", "vocab.json"] {
        std::fs::create_dir_all(place.path("published")).expect("a folder");
        std::fs::copy(tokenizer().join(name), place.path("published").join(name)).expect("copied");
    }
    let pair = |at: usize| {
        let (word, other) =
            [("the cat", "die Katze"), ("a dog", "der Hund"), ("the old house", "das alt Haus")][at % 3];
        format!("{word} {}\t{other} {}\n", "sees ".repeat(at % 4), "sieht ".repeat(at % 4))
    };
    place.write("pairs.tsv", (0..60).map(pair).collect::<String>());
    let line = "train tiny-translation --ranks 1 --set model.layers=1 --set model.width=16 --set model.heads=2 --set model.context=48 \
                --set train.global_batch=6 --set train.threads=1 --set train.steps=6 --set eval.limit=4 \
                --set model.tokenizer=published --set data.path=pairs.tsv --out run";
    let said = place.succeed(line);
    assert!(said.contains("57 different tokens"), "{said}");
    place.succeed("export run --out folder/");
    for name in ["source.spm", "target.spm", "vocab.json"] {
        let expected = std::fs::read(tokenizer().join(name)).expect("a fixture");
        for kept in ["run", "folder"] {
            assert_eq!(std::fs::read(place.path(kept).join(name)).expect("kept"), expected, "{kept}/{name}");
        }
    }
    assert!(
        !place.path("folder/tokenizer.json").exists(),
        "another program would take it for both languages"
    );
    // The run is used without its data and its tokenizer's folder.
    std::fs::remove_file(place.path("pairs.tsv")).expect("removed");
    std::fs::remove_dir_all(place.path("published")).expect("removed");
    let translated = |model: &str| place.succeed(&format!("translate {model} the_cat Ω --json --tokens 9"));
    assert_eq!(translated("run"), translated("folder"));
    // The folder as another program writes it.
    let config = std::fs::read_to_string(place.path("folder/config.json")).expect("written");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config.as_object_mut().expect("an object").remove("phalanx");
    assert_eq!((&config["pad_token_id"], &config["eos_token_id"]), (&56.into(), &0.into()));
    assert_eq!(config["tokenizer_class"], "MarianTokenizer");
    place.write("folder/config.json", config.to_string());
    let weights = place.path("folder/model.safetensors");
    let mut tensors = phalanx_tensor::io::load_safetensors(&weights).expect("reads");
    // Files of torch.save have copies of the tied table, and positions that are computed.
    let table = tensors.iter().find(|(name, _)| name == "model.shared.weight").expect("the table").1.clone();
    let names =
        ["lm_head.weight", "model.encoder.embed_tokens.weight", "model.encoder.embed_positions.weight"];
    let copies = names.map(|name| (name.to_owned(), table.clone()));
    tensors.extend(copies);
    phalanx_tensor::io::save_safetensors(&weights, &tensors, &[]).expect("writes");
    assert_eq!(translated("run"), translated("folder"));
    std::fs::remove_file(place.path("folder/target.spm")).expect("removed");
    assert!(place.fail("translate folder cat").contains("target.spm"));
}
