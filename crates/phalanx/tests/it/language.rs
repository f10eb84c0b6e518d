//! Language models: every strategy gives the losses of one rank, files of text are read, and bad input is named.

use crate::harness::results::{column, hashes};
use crate::harness::{Place, side_by_side};

/// A small model whose steps take milliseconds, with dropout.
const GPT: &str = "train tiny-gpt --set model.layers=2 --set model.width=16 --set model.heads=2 --set model.context=12 \
                   --set train.global_batch=6 --set train.threads=1 --set log.every=1 --set train.steps=10 \
                   --set schedule.warmup_steps=0 --set eval.limit=5";

/// A decoder of the same size with a head of its own, whose heads share keys.
const LLAMA: &str = "train tiny-llama --set model.layers=2 --set model.width=16 --set model.heads=4 --set model.key_heads=2 \
                     --set model.context=12 --set model.head_norms=true --set model.tied=false \
                     --set train.global_batch=6 --set train.threads=1 --set log.every=1 \
                     --set train.steps=10 --set schedule.warmup_steps=0 --set eval.limit=5";

fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let near = |(found, expected): (&f64, &f64)| (found - expected).abs() <= tolerance * expected.abs();
    assert!(found.iter().zip(expected).all(near), "{what}: {found:?} and {expected:?}");
}

#[test]
fn every_strategy_gives_the_losses_of_one_rank() {
    let place = Place::new();
    // The last window of the text is shorter, so ranks have different numbers of predictions.
    let text: String =
        (0..400).map(|at| ["the ", "cat ", "sees ", "a ", "bird. "][at * at % 7 % 5]).collect();
    std::fs::write(place.path("text.txt"), text).expect("writes");
    let experts =
        format!("{LLAMA} --set model.head_norms=false --set model.experts=4 --set model.balance_weight=0.1");
    for (model, data, name) in [
        (GPT, "--set model.texts=40", "sentences"),
        (GPT, "--set data.path=text.txt", "file"),
        (LLAMA, "--set data.path=text.txt", "llama"),
        (LLAMA, "--set data.path=text.txt --set model.tied=true", "tied"),
        (&experts, "--set data.path=text.txt", "experts"),
    ] {
        place.succeed(&format!("{model} {data} --ranks 1 --out {name}"));
        let losses =
            |run: &str| [column(&place.path(run), "loss"), column(&place.path(run), "test_loss")].concat();
        let expected = losses(name);
        assert!(expected.len() > 10 && expected[9] < expected[0], "{expected:?}");
        side_by_side(
            [
                "--ranks 3 --strategy ddp",
                "--ranks 2 --strategy zero2",
                "--ranks 4 --strategy fsdp",
                "--ranks 4 --strategy hsdp --set comm.link=10Gbit,1us --set comm.hosts=2",
                "--ranks 2 --strategy fsdp --set train.recompute=1 --set train.accumulate=2",
            ],
            |line| {
                let run = format!("{name}-{}", line.replace(|c: char| !c.is_alphanumeric(), ""));
                place.succeed(&format!("{model} {data} {line} --out {run}"));
                assert_close(&run, &losses(&run), &expected, 2e-5);
            },
        );
        let run = format!("{name}-bf16");
        place.succeed(&format!("{model} {data} --ranks 2 --set train.precision=bf16 --out {run}"));
        assert_close(&run, &losses(&run), &expected, 0.03);
    }
}

#[test]
fn a_prompt_that_the_model_cannot_take_is_refused_before_the_first_step() {
    let place = Place::new();
    let run = format!("{GPT} --set model.texts=40 --steps 2 --set sample.tokens=4");
    for ranks in ["--ranks 1", "--ranks 2 --strategy fsdp"] {
        let said = place.fail(&format!("{run} {ranks} --set sample.prompts=[\"zebra\"] --out wrong"));
        assert!(
            said.contains("sample.prompts: \"zebra\": ") && said.contains("46 of the vocabulary"),
            "{said}"
        );
        assert!(!place.path("wrong/metrics.jsonl").exists());
    }
    place.succeed(&format!("{run} --ranks 2 --strategy fsdp --set sample.prompts=[\"two\",\"a\"] --out run"));
    let texts = std::fs::read_to_string(place.path("run/samples/step-00000002.txt"));
    let texts = texts.expect("the texts of the last step");
    assert!(texts.starts_with("[1]\ntwo") && texts.contains("\n[2]\na"), "{texts}");
}

#[test]
fn a_run_may_be_as_long_as_a_number_of_tokens() {
    let place = Place::new();
    // Nine tenths are for training: 43 windows of 12 tokens and a shorter one. A step of 6 windows has 71 tokens on average.
    place.write("text.txt", "the cat sees it. ".repeat(35).get(..579).expect("as long"));
    let run = format!("{GPT} --set data.path=text.txt --set train.steps=0 --set train.tokens=1000");
    for (ranks, out) in [("--ranks 1", "one"), ("--ranks 2 --strategy fsdp", "two")] {
        place.succeed(&format!("{run} {ranks} --out {out}"));
        let summary = std::fs::read_to_string(place.path(&format!("{out}/summary.json"))).expect("written");
        let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
        assert_eq!(summary["step"], 15, "{ranks}");
    }
    assert_eq!(column(&place.path("one"), "lr").last(), column(&place.path("two"), "lr").last());
    let said = place.fail(&format!("{GPT} --set train.tokens=1000 --out both"));
    assert!(said.contains("train.tokens = 1000 and train.steps = 10 are both lengths of the run"), "{said}");
}

#[test]
fn muon_steps_whole_matrices_on_any_number_of_ranks() {
    let place = Place::new();
    let muon = "--set optim.kind=muon --set optim.momentum=0.95 --set model.texts=40";
    place.succeed(&format!("{GPT} {muon} --ranks 1 --out one"));
    place.succeed(&format!("{GPT} {muon} --ranks 3 --strategy ddp --out three"));
    let losses = |run: &str| column(&place.path(run), "loss");
    assert!(losses("one")[9] < losses("one")[0], "{:?}", losses("one"));
    assert_close("ddp", &losses("three"), &losses("one"), 1e-3);
    place.succeed(&format!("{GPT} {muon} --ranks 1 --out cut --steps 4"));
    place.succeed("train --resume --out cut --steps 10");
    assert_eq!(hashes(&place.path("cut")), hashes(&place.path("one")), "a resumed run");
    let said = place.fail("train --resume --out cut --steps 12 --set optim.kind=adamw --set train.steps=12");
    assert!(said.contains("exp_avg_sq_of_vectors"), "{said}");
    let said = place.fail(&format!("{GPT} {muon} --ranks 2 --strategy fsdp --out two"));
    assert!(said.contains("optim.kind = muon steps whole matrices") && said.contains("ddp"), "{said}");
    let said = place.fail(&format!("{GPT} --set optim.unturned=[\"h\"] --out two"));
    assert!(said.contains("optim.unturned is for optim.kind = muon"), "{said}");
    let said = place.fail(&format!("{GPT} {muon} --set optim.unturned=[\"head\"] --ranks 1 --out two"));
    assert!(said.contains("`head` matches no parameter"), "{said}");
}

#[test]
fn a_text_is_read_by_bytes_and_a_run_resumes_to_the_bit() {
    let place = Place::new();
    std::fs::write(place.path("bytes"), [7_u8, 255, 0, 13].repeat(120)).expect("writes");
    let line = format!("{GPT} --ranks 1 --set data.path=bytes --set model.tokenizer=bytes");
    place.succeed(&format!("{line} --out whole"));
    place.succeed(&format!("{line} --steps 4 --out parts"));
    place.succeed("train --resume --out parts --steps 0");
    assert_eq!(hashes(&place.path("parts")), hashes(&place.path("whole")));
    // Another dropout is a choice.
    place.succeed("train --resume --out parts --steps 0 --set train.steps=12 --set model.dropout=0.2");
}

#[test]
fn bad_input_is_named() {
    let place = Place::new();
    std::fs::write(place.path("latin1.txt"), b"caf\xe9 ".repeat(50)).expect("writes");
    std::fs::write(place.path("short.txt"), "a").expect("writes");
    for (line, words) in [
        ("--set model.key_heads=3", &["4 heads cannot share 3"][..]),
        ("--set model.head_dim=5", &["head_dim", "even"]),
        ("--set model.theta=0", &["theta"]),
        ("--set model.balance_weight=0.1", &["without experts"]),
        ("--set model.head_norms=false --set model.experts=2 --set model.balance_weight=-1", &["negative"]),
    ] {
        let said = place.fail(&format!("{LLAMA} --ranks 1 {line} --out run"));
        assert!(words.iter().all(|words| said.contains(words)), "{line}: {said}");
    }
    for (line, words) in [
        ("--set model.heads=3", &["3 heads do not divide a width of 16"][..]),
        ("--set model.context=0", &["model.context"]),
        ("--set data.path=none.txt", &["none.txt"]),
        ("--set data.path=latin1.txt", &["latin1.txt", "not UTF-8 at byte 3"]),
        ("--set data.path=short.txt", &["short.txt", "no two in a row"]),
    ] {
        let said = place.fail(&format!("{GPT} --ranks 1 {line} --out run"));
        assert!(words.iter().all(|words| said.contains(words)), "{line}: {said}");
        assert!(!place.path("run/config.toml").exists(), "{line}: there is a run");
    }
}

/// Trains by characters, and returns the place of the run.
fn trained_by_characters() -> Place {
    let place = Place::new();
    let text: String =
        (0..900).map(|at| ["the ", "cat ", "sees ", "a ", "bird.\n"][at * at % 7 % 5]).collect();
    place.write("text.txt", &text);
    let line = "--ranks 1 --set data.path=text.txt --set train.steps=40 --set optim.lr=0.01 --out run";
    place.succeed(&format!("{GPT} {line}"));
    place
}

#[test]
fn a_trained_model_writes_texts_again_and_again_the_same() {
    let place = trained_by_characters();
    // Other characters, as many as before, would be other tokens.
    let text = std::fs::read_to_string(place.path("text.txt")).expect("there");
    place.write("text.txt", text.replace('b', "z"));
    let said = place.fail("train --resume --out run --steps 0 --set train.steps=50");
    assert!(said.contains("tokenizer.json is not that of the data"), "{said}");
    // The text is not needed any more.
    std::fs::remove_file(place.path("text.txt")).expect("there");
    // The run has written the same texts as its samples.
    let newest = std::fs::read_dir(place.path("run/samples"))
        .expect("there")
        .flatten()
        .map(|entry| entry.path())
        .max();
    let samples = std::fs::read_to_string(newest.expect("texts of the last step")).expect("a file");
    assert_eq!(samples.trim_end(), place.succeed("write run --samples 8 --tokens 64").trim_end());
    assert!(samples.starts_with("[1]\n") && samples.contains("\n[8]\n"), "{samples}");
    let one = place.succeed("write run --prompt the --tokens 60 --seed 1");
    assert!(one.trim_end().starts_with("the") && one.trim_end().len() > 40, "{one}");
    assert_eq!(one, place.succeed("write run --prompt the --tokens 60 --seed 1 --no-cache"));
    assert_ne!(one, place.succeed("write run --prompt the --tokens 60 --seed 2"));
    let several = place.succeed("write run --prompt the --prompt a --samples 2 --tokens 60 --seed 1 --json");
    let lines: Vec<serde_json::Value> =
        several.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 4);
    // Of the batch, the first is the text alone.
    assert_eq!(format!("the{}", lines[0]["text"].as_str().expect("a text")).trim_end(), one.trim_end());
    assert_ne!(lines[0]["text"], lines[1]["text"]);
    let greedy = place.succeed("write run --prompt the --greedy --tokens 6");
    assert_eq!(greedy, place.succeed("write run --prompt the --beams 1 --tokens 6"));
    let beams = place.succeed("write run --prompt the --beams 3 --samples 2 --tokens 6 --json");
    let scores: Vec<f64> = beams
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON")["score"].as_f64().expect("a score")
        })
        .collect();
    assert!(scores.len() == 2 && scores[0] >= scores[1], "{scores:?}");
    for (line, words) in [
        ("write run --prompt zebra", "'z' is not in the vocabulary"),
        ("write run --prompt thecatseesabird.", "the model's context is 12"),
        ("write run --temperature=-1", "--temperature -1"),
        ("write run --top-p 0", "--top-p 0"),
        ("write none", "none"),
    ] {
        let said = place.fail(line);
        assert!(said.contains(words), "{line}: {said}");
    }
}

#[test]
fn measures_of_texts_do_not_depend_on_the_batch() {
    let place = trained_by_characters();
    let measures = |line: &str| -> Vec<f64> {
        let text = place.succeed(&format!("eval run --json {line}"));
        let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        ["loss", "perplexity", "bits_per_byte", "accuracy"]
            .map(|name| all[name].as_f64().expect("a number"))
            .to_vec()
    };
    let whole = measures("");
    assert!(
        (whole[0].exp() - whole[1]).abs() < 1e-6
            && (whole[0] / std::f64::consts::LN_2 - whole[2]).abs() < 1e-6
    );
    assert_close("batches of one", &measures("--set eval.batch=1"), &whole, 1e-6);
    let more = measures("--set model.stride=3");
    assert!(more[0] < whole[0], "more is seen before each token: {more:?} and {whole:?}");
}

#[test]
fn files_of_tokens_train_as_their_text() {
    let place = trained_by_characters();
    place.succeed("tokens learn text.txt --vocab 270 --out own.json");
    place.succeed("tokens encode text.txt --tokenizer own.json --out tokens --format llm.c");
    let checked = place.succeed("tokens check tokens");
    assert!(checked.contains("train") && checked.contains("val.bin (test)"), "{checked}");
    let line = format!("{GPT} --ranks 2");
    place.succeed(&format!("{line} --set data.path=tokens --out of-tokens"));
    place.succeed(&format!("{line} --set data.path=tokens --set model.apart=true --out apart"));
    let losses = column(&place.path("of-tokens"), "loss");
    assert!(losses.len() == 10 && losses[9] < losses[0], "{losses:?}");
    let config = std::fs::read_to_string(place.path("of-tokens/config.json")).expect("kept");
    place.write("small.json", config.replace("270", "200"));
    let said = place.succeed("write of-tokens --prompt the --tokens 5");
    assert!(said.starts_with("the"), "{said}");
    for (line, words) in [
        ("--set data.path=tokens --set model.config=small.json", &["vocabulary of 200", "270 tokens"][..]),
        ("--set data.path=tokens --set model.tokenizer=bytes", &["beyond the vocabulary of 256"]),
        ("--set data.path=tokens --set model.stride=13", &["model.stride = 13"]),
        ("--set data.path=text.txt --set model.apart=true", &["nothing marks the documents of text.txt"]),
    ] {
        let said = place.fail(&format!("{GPT} --ranks 1 {line} --out bad"));
        assert!(words.iter().all(|words| said.contains(words)), "{line}: {said}");
        assert!(!place.path("bad/config.toml").exists(), "{line}: there is a run");
    }
    let whole = std::fs::read(place.path("tokens/train.bin")).expect("there");
    std::fs::write(place.path("tokens/train.bin"), &whole[..whole.len() - 2]).expect("writes");
    let said = place.fail(&format!("{GPT} --ranks 1 --set data.path=tokens --out bad"));
    assert!(said.contains("train.bin") && said.contains("cut short"), "{said}");
}

/// Returns the tensors of a file of weights, without its description.
fn tensors(file: &std::path::Path) -> Vec<u8> {
    let bytes = std::fs::read(file).expect("there");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    bytes[8 + header as usize..].to_vec()
}

#[test]
fn exported_folders_are_trained_further_and_exported_again_the_same() {
    let mixtral = format!("{LLAMA} --set model.head_norms=false --set model.experts=3");
    for (model, kind, family) in
        [(GPT, "gpt2", "gpt2"), (LLAMA, "llama", "qwen3"), (&mixtral, "llama", "mixtral")]
    {
        let place = Place::new();
        place.succeed(&format!("{model} --ranks 1 --out run"));
        place.succeed("export run --out folder/");
        let config = std::fs::read_to_string(place.path("folder/config.json")).expect("written");
        let mut json: serde_json::Value = serde_json::from_str(&config).expect("JSON");
        assert_eq!(json["model_type"], family);
        // As other programs write it.
        json.as_object_mut().expect("an object").remove("phalanx");
        place.write("folder/config.json", json.to_string());
        let text = place.succeed("write run --prompt every --greedy --tokens 6");
        assert_eq!(place.succeed("write folder --prompt every --greedy --tokens 6"), text);
        std::fs::rename(place.path("folder/tokenizer.json"), place.path("tokenizer.json")).expect("there");
        let said = place.fail("write folder --prompt every");
        assert!(said.contains("add its tokenizer.json"), "{said}");
        std::fs::rename(place.path("tokenizer.json"), place.path("folder/tokenizer.json")).expect("there");
        // A step that changes nothing.
        let line = "--set model.config=folder --set model.weights=folder --ranks 2 --strategy fsdp";
        let still = "--set model.dropout=0 --set optim.lr=1e-30 --set train.steps=1";
        let still =
            if kind == "gpt2" { still.to_owned() } else { still.replace("--set model.dropout=0", "") };
        let kind = format!("--set model.kind={kind}");
        place.succeed(&format!(
            "train {kind} {line} {still} --set model.context=12 --set train.global_batch=6 --set eval.limit=5 --out again"
        ));
        place.succeed("export again --out again-folder/");
        let [before, after] =
            ["folder", "again-folder"].map(|at| place.path(&format!("{at}/model.safetensors")));
        assert_eq!(tensors(&before), tensors(&after));
        let said = place.fail(&format!("train {kind} {line} --set model.context=13 --out bad"));
        assert!(said.contains("model.context = 13") && said.contains("12 positions"), "{said}");
    }
}

/// An encoder that restores masked words, whose steps take milliseconds.
const BERT: &str = "train tiny-bert --set model.layers=2 --set model.width=16 --set model.heads=2 --set model.context=14 \
                    --set train.global_batch=6 --set train.threads=1 --set log.every=1 --set train.steps=10 \
                    --set schedule.warmup_steps=0 --set eval.limit=5 --set model.dropout=0.1 --set optim.lr=0.01";

/// A classifier of sentences of the same size.
const CLASSIFIER: &str = "train tiny-bert-classifier --set model.layers=2 --set model.width=16 --set model.heads=2 \
                          --set train.global_batch=6 --set train.threads=1 --set log.every=1 \
                          --set train.steps=10 --set schedule.warmup_steps=0 --set eval.limit=5 --set model.dropout=0.1 \
                          --set optim.lr=0.01";

#[test]
fn encoders_give_the_losses_of_one_rank() {
    let place = Place::new();
    let text: String =
        (0..400).map(|at| ["the ", "cat ", "sees ", "a ", "bird. "][at * at % 7 % 5]).collect();
    place.write("text.txt", &text);
    let line = |at: usize| {
        let word = ["good", "fine", "bad", "poor"][at % 4];
        let more = "so ".repeat(at % 5);
        format!("{{\"text\": \"it is {more}{word}\", \"label\": \"{}\"}}\n", ["yes", "no"][at % 4 / 2])
    };
    place.write("texts.jsonl", (0..60).map(line).collect::<String>());
    // The class is that of both texts: whether their words are the same.
    let pair = |at: usize| {
        let [one, two] = [at % 4, at / 4 % 4].map(|word| ["good", "fine", "bad", "poor"][word]);
        let more = "so ".repeat(at % 5);
        format!("{{\"text\": \"{more}{one}\", \"other\": \"{two}\", \"label\": {}}}\n", u8::from(one == two))
    };
    place.write("pairs.jsonl", (0..60).map(pair).collect::<String>());
    for (model, data, name) in [
        (BERT, "--set model.texts=40", "sentences"),
        // The last block of the text is shorter, so samples have different numbers of hidden tokens.
        (BERT, "--set data.path=text.txt", "file"),
        (CLASSIFIER, "--set model.texts=40", "judged"),
        // Texts of different lengths: ranks pad to different lengths.
        (CLASSIFIER, "--set data.path=texts.jsonl", "labelled"),
        (CLASSIFIER, "--set data.path=pairs.jsonl --set model.pair_key=other", "pairs"),
    ] {
        place.succeed(&format!("{model} {data} --ranks 1 --out {name}"));
        let losses =
            |run: &str| [column(&place.path(run), "loss"), column(&place.path(run), "test_loss")].concat();
        let expected = losses(name);
        assert!(expected.len() > 10, "{expected:?}");
        side_by_side(
            [
                "--ranks 3 --strategy ddp",
                "--ranks 2 --strategy zero2",
                "--ranks 4 --strategy fsdp",
                "--ranks 2 --strategy fsdp --set train.recompute=1 --set train.accumulate=2",
            ],
            |line| {
                let run = format!("{name}-{}", line.replace(|c: char| !c.is_alphanumeric(), ""));
                place.succeed(&format!("{model} {data} {line} --out {run}"));
                assert_close(&run, &losses(&run), &expected, 2e-5);
            },
        );
        let run = format!("{name}-bf16");
        place.succeed(&format!("{model} {data} --ranks 2 --set train.precision=bf16 --out {run}"));
        assert_close(&run, &losses(&run), &expected, 0.05);
    }
    let answer: serde_json::Value =
        serde_json::from_str(&place.succeed("predict pairs --text good --pair poor --json")).expect("JSON");
    assert_eq!((answer["text"].as_str(), answer["pair"].as_str()), (Some("good"), Some("poor")));
    for (line, words) in [
        ("predict pairs --text good", "\"good\" has no second text, and the model was trained on pairs"),
        ("predict pairs --text good --text bad --pair poor", "2 texts and 1 second texts"),
    ] {
        let said = place.fail(line);
        assert!(said.contains(words), "{said}");
    }
    // Of an epoch other tokens are hidden than of the next, and a resumption hides the same.
    let line = format!("{BERT} --set model.texts=12 --ranks 2");
    place.succeed(&format!("{line} --out whole"));
    place.succeed(&format!("{line} --steps 3 --out parts"));
    place.succeed("train --resume --out parts --steps 0");
    assert_eq!(hashes(&place.path("parts")), hashes(&place.path("whole")));
}

#[test]
fn an_encoder_fills_in_masks_and_is_fine_tuned_as_a_classifier() {
    let place = Place::new();
    place.succeed(&format!("{BERT} --ranks 1 --set model.context=24 --set train.steps=30 --out run"));
    let write = |text: &str| {
        place.write("text", text);
        "write run --prompt-file text --samples 2 --json"
    };
    let filled = place.succeed(write("two small [MASK] see a [MASK] ."));
    let lines: Vec<serde_json::Value> =
        filled.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    assert_eq!(lines.len(), 2, "{filled}");
    for line in &lines {
        let words: Vec<&str> = line["text"].as_str().expect("a text").split_whitespace().collect();
        assert_eq!((words.len(), words[0], words[7 - 1]), (7, "two", "."), "{filled}");
        assert_eq!(line["tokens"], 2);
    }
    assert!(lines[0]["score"].as_f64() > lines[1]["score"].as_f64(), "the more probable first");
    let said = place.succeed_with_errors("write run --prompt-file text --top-k 3");
    assert!(said.contains("--top-k has no effect"), "{said}");
    let said = place.fail(write("a cat sees two birds ."));
    assert!(said.contains("has no [MASK]"), "{said}");
    let said = place.fail(write("a cat sees two horses .[MASK]"));
    assert!(said.contains("a word of the text is not among"), "{said}");
    // The trunk is kept, and the head is made new.
    place.succeed("export run --out folder/");
    let line = format!(
        "{CLASSIFIER} --ranks 1 --set model.config=folder --set model.weights=folder --set train.steps=2"
    );
    let said = place.succeed(&format!("{line} --out tuned"));
    assert!(said.contains("head bert.pooler.dense.weight and 3 others made new"), "{said}");
    let config = std::fs::read_to_string(place.path("tuned/config.json")).expect("kept");
    assert!(config.contains("BertForSequenceClassification") && config.contains("disagrees"), "{config}");
    let said = place.succeed("eval tuned");
    assert!(said.contains("accuracy"), "{said}");
    // The classes of texts of different lengths, together and alone.
    let texts = ["a cat sees two birds .", "two cats sees a bird that helps every old robot ."];
    place.write("texts", texts.join("\n"));
    let both = place.succeed("predict tuned --text-file texts --json --top 2");
    let answer = |line: &str| -> serde_json::Value { serde_json::from_str(line).expect("a line of JSON") };
    let both: Vec<serde_json::Value> = both.lines().map(answer).collect();
    assert_eq!((both.len(), both[1]["text"].as_str()), (2, Some(texts[1])));
    place.write("texts", texts[0]);
    let alone = answer(place.succeed("predict tuned --text-file texts --json --top 2").trim());
    assert_eq!(alone["class"], both[0]["class"]);
    let probability = |answer: &serde_json::Value| answer["probability"].as_f64().expect("a number");
    assert!((probability(&alone) - probability(&both[0])).abs() < 1e-6);
    let said = place.fail("predict run --text-file texts");
    assert!(said.contains("predicts no classes of texts"), "{said}");
    // The folder as another program writes it: texts may be as long as the model has positions.
    place.succeed("export tuned --out judged/");
    let weights = place.path("judged/model.safetensors");
    let tensors = phalanx_tensor::io::load_safetensors(&weights).expect("reads");
    phalanx_tensor::io::save_safetensors(&weights, &tensors, &[]).expect("writes");
    let config = std::fs::read_to_string(place.path("judged/config.json")).expect("written");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config.as_object_mut().expect("an object").remove("phalanx");
    assert_eq!(config["max_position_embeddings"], 24);
    place.write("judged/config.json", config.to_string());
    let published = answer(place.succeed("predict judged --text-file texts --json").trim());
    assert!((probability(&published) - probability(&alone)).abs() < 1e-6, "{published} and {alone}");
}

#[test]
fn bad_input_of_encoders_is_named() {
    let place = Place::new();
    place.write("no-label.jsonl", "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\"}\n");
    place.write("short.tsv", "text\tlabel\none\t1\ntwo\n");
    place.write("columns.tsv", "sentence\tlabel\none\t1\n");
    place.write("text.txt", "words");
    for (line, words) in [
        (&format!("{BERT} --set model.context=2"), &["model.context", "at least 3"][..]),
        (&format!("{BERT} --set model.masked=0"), &["model.masked"]),
        (&format!("{BERT} --set model.tokenizer=bytes"), &["no tokenizer of generated sentences"]),
        (&format!("{CLASSIFIER} --set model.tokenizer=bytes"), &["no tokenizer of generated sentences"]),
        (&format!("{GPT} --set model.tokenizer=bytes"), &["no tokenizer of generated sentences"]),
        (&format!("{CLASSIFIER} --set data.path=no-label.jsonl"), &["line 2", "\"label\""]),
        (&format!("{CLASSIFIER} --set data.path=short.tsv"), &["short.tsv, line 3"]),
        (&format!("{CLASSIFIER} --set data.path=columns.tsv"), &["no column \"text\"", "sentence"]),
        (&format!("{CLASSIFIER} --set data.path=text.txt"), &["text.txt", ".jsonl"]),
    ] {
        let said = place.fail(&format!("{line} --ranks 1 --out run"));
        assert!(words.iter().all(|words| said.contains(words)), "{line}: {said}");
        assert!(!place.path("run/config.toml").exists(), "{line}: there is a run");
    }
}

/// A translation model whose steps take milliseconds.
const MARIAN: &str = "train tiny-translation --set model.layers=2 --set model.width=16 --set model.heads=2 \
                      --set train.global_batch=6 --set train.threads=1 --set log.every=1 --set train.steps=10 \
                      --set schedule.warmup_steps=0 --set eval.limit=7 --set optim.lr=0.01";

#[test]
fn translations_are_the_same_on_any_world() {
    let place = Place::new();
    let line = |at: usize| {
        let (word, other) = [("one", "eins"), ("two", "zwei"), ("three cats", "drei Katzen")][at % 3];
        format!("{word} {} end\t{other} {} Ende\n", "and ".repeat(at % 4), "und ".repeat(at % 4))
    };
    place.write("pairs.tsv", (0..60).map(line).collect::<String>());
    for (data, name) in [("--set model.texts=40", "sentences"), ("--set data.path=pairs.tsv", "file")] {
        let data = format!("{data} --set model.context=32 --set model.pieces=300");
        place.succeed(&format!("{MARIAN} {data} --ranks 1 --out {name}"));
        let measures = |run: &str| {
            let of = |key: &str| column(&place.path(run), key);
            [of("loss"), of("test_loss"), of("test_bleu"), of("test_right")].concat()
        };
        let expected = measures(name);
        assert!(expected.len() > 12 && expected[9] < expected[0], "{expected:?}");
        side_by_side(
            [
                "--ranks 3 --strategy ddp",
                "--ranks 2 --strategy zero2",
                // Ranks gather parameters together while each translates texts of other lengths.
                "--ranks 4 --strategy fsdp",
                "--ranks 2 --strategy fsdp --set train.recompute=1 --set train.accumulate=2",
            ],
            |line| {
                let run = format!("{name}-{}", line.replace(|c: char| !c.is_alphanumeric(), ""));
                place.succeed(&format!("{MARIAN} {data} {line} --out {run}"));
                assert_close(&run, &measures(&run), &expected, 2e-5);
            },
        );
        // Micro-batches of similar lengths are other parts of the same steps.
        let grouped = "--set model.dropout=0 --set train.accumulate=3 --set data.group_by_length";
        for (run, group) in [("plain", "false"), ("grouped", "true")] {
            place.succeed(&format!("{MARIAN} {data} --ranks 2 {grouped}={group} --out {name}-{run}"));
        }
        assert_close(name, &measures(&format!("{name}-grouped")), &measures(&format!("{name}-plain")), 2e-5);
        let run = format!("{name}-bf16");
        place.succeed(&format!("{MARIAN} {data} --ranks 2 --set train.precision=bf16 --out {run}"));
        let losses = |run: &str| column(&place.path(run), "loss");
        assert_close(&run, &losses(&run), &losses(name), 0.05);
    }
}

#[test]
fn a_translation_is_that_of_its_text_alone_and_of_its_export() {
    let place = Place::new();
    place.succeed(&format!("{MARIAN} --ranks 1 --set model.dropout=0 --set train.steps=40 --out run"));
    let texts =
        ["every cat sees a robot .", "a small robot that helps two birds sees every cat .", "this bird ."];
    place.write("all.txt", texts.join("\n"));
    let all = place.succeed("translate run --file all.txt --beams 1");
    let all: Vec<&str> = all.lines().collect();
    assert_eq!(all.len(), 3);
    for (number, text) in texts.iter().enumerate() {
        place.write("one.txt", text);
        let alone = place.succeed("translate run --file one.txt --beams 1");
        assert_eq!(alone.trim_end(), all[number], "{text}");
    }
    place.succeed("export run --out folder/");
    let beams = |model: &str| place.succeed(&format!("translate {model} --file all.txt --json"));
    assert_eq!(beams("folder"), beams("run"));
    let said = place.fail("write run");
    assert!(said.contains("phalanx translate"), "{said}");
    place.write("long.txt", "every cat sees a robot . ".repeat(9));
    let said = place.fail("translate run --file long.txt");
    assert!(said.contains("55 tokens") && said.contains("cut it into sentences"), "{said}");
    // The folder is trained further, and the export of a step of rate 0 is the same.
    let more = "--set model.config=folder --set model.weights=folder --set optim.lr=0 --set train.steps=1";
    place.succeed(&format!("{MARIAN} --ranks 1 {more} --out more"));
    place.succeed("export more --out again/");
    let bytes =
        |folder: &str| std::fs::read(place.path(&format!("{folder}/model.safetensors"))).expect("there");
    let tensors = |folder: &str| {
        let bytes = bytes(folder);
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
        bytes[8 + header..].to_vec()
    };
    assert_eq!(tensors("again"), tensors("folder"));
}

#[test]
fn bad_pairs_are_named() {
    let place = Place::new();
    place.write("texts/train.en", "one\ntwo\n");
    place.write("texts/train.de", "eins\n");
    place.write("one-cell.tsv", "one\teins\ntwo\n");
    place.write("keys.jsonl", "{\"en\": \"one\"}\n");
    place.write("cut.mo", [0xde_u8, 0x12, 0x04, 0x95, 0, 0, 0, 0, 9]);
    place.write("text.txt", "words");
    for (line, words) in [
        ("--set data.path=texts", &["train.en", "2 lines", "train.de has 1"][..]),
        ("--set data.path=one-cell.tsv", &["one-cell.tsv, line 2", "1 cells"]),
        ("--set data.path=keys.jsonl", &["line 1", "\"de\""]),
        ("--set data.path=cut.mo", &["cut.mo", "cut short"]),
        ("--set data.path=text.txt", &["text.txt", ".tsv"]),
        ("--set model.context=9", &["model.context = 9", "13 words"]),
        ("--set model.heads=3", &["3 heads"]),
        ("--set data.path=none.tsv", &["none.tsv"]),
        ("--set data.path=none.tsv --set model.tokenizer=bytes", &["none.tsv"]),
        ("--set model.tokenizer=bytes", &["no tokenizer of generated sentences"]),
    ] {
        let said = place.fail(&format!("{MARIAN} --ranks 1 {line} --out run"));
        assert!(words.iter().all(|words| said.contains(words)), "{line}: {said}");
        assert!(!place.path("run/config.toml").exists(), "{line}: there is a run");
    }
}
