//! The commands of the README and the tutorial, in their order, in one folder: trainings with few steps and small images.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Place, both};

/// Options by which a training of an example takes seconds.
const SHORT: &str = "--set train.steps=2 --set train.global_batch=8 --set train.threads=1 --set data.limit=32 --set data.test_images=16 \
    --set model.image_size=32 --set data.resize=0 --set sample.rows=1 --set sample.columns=1";

/// Returns the commands in the shell blocks of a page, without comments.
fn commands(page: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join(page)).expect("a page");
    let mut is_shell = false;
    let mut found = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(language) => is_shell = language == "sh",
            None if is_shell && line.starts_with("phalanx ") => {
                found.push(line.split("  #").next().unwrap_or_default().trim().to_owned());
            }
            None => {}
        }
    }
    found
}

/// Returns the words of a line: at spaces outside of double quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for character in line.chars() {
        match character {
            '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            _ => words.last_mut().expect("never empty").push(character),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Runs a command of a page as it stands, or shortened if it trains. Returns what it prints.
fn carry_out(place: &Place, line: &str) -> String {
    let line = line.strip_prefix("phalanx ").expect("a command of the program");
    let command = line.split(' ').next().unwrap_or_default();
    let line = match command {
        "train" if line.contains("PATH") => {
            format!("{} --set train.global_batch=8 --dry-run", line.replace("PATH", "photos"))
        }
        "train" if line.contains("--resume") => line.to_owned(),
        "train" => format!("{line} {SHORT}"),
        // It serves until it is interrupted.
        "find-lr" => format!("{line} --steps 32 --set train.global_batch=4"),
        "serve" => format!("{line} --help"),
        "sweep" | "study" if !line.contains("--dry-run") => format!("{line} --dry-run"),
        _ => line.replace("PATH", "photos"),
    };
    let output = place.command("").args(words(&line)).output().expect("the program starts");
    assert!(output.status.success(), "{line}: {}\n{}", output.status, both(&output));
    both(&output)
}

/// Writes the file of each block of TOML that follows a line with its name.
fn write_files(place: &Place, page: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join(page)).expect("a page");
    for block in text.split("```toml\n").skip(1) {
        let name = text[..text.find(block).unwrap_or(0)].rsplit('`').find(|part| part.ends_with(".toml"));
        let content = block.split("```").next().unwrap_or_default();
        place.write(name.expect("a name before the block"), content);
    }
}

#[test]
fn the_tutorial_can_be_followed() {
    let place = Place::new();
    write_files(&place, "docs/tutorial.md");
    let lines = commands("docs/tutorial.md");
    assert!(lines.len() > 15, "{lines:?}");
    for line in &lines {
        let is_tuning = line.contains("--weights resnet18.pth");
        if is_tuning {
            // Weights that exist: those of the training before, for other classes.
            place.succeed("export runs/photos --out resnet18.safetensors");
        }
        carry_out(&place, &line.replace("resnet18.pth", "resnet18.safetensors"));
    }
    assert!(place.path("star.png").is_file() && place.path("runs/first/report.html").is_file());
    assert!(place.path("model/config.json").is_file() && place.path("model.onnx").is_file());
}

#[test]
fn the_commands_of_the_readme_work() {
    let place = Place::new();
    place.write("my.toml", "extends = \"tiny\"\n");
    place.succeed("data write --data shapes --per-class 4 --set data.test_images=16 --out photos");
    let photos = format!("train photos-resnet18 --data folder=photos --out runs/photos {SHORT}");
    place.succeed(&photos);
    place.succeed("data write --data shapes --per-class 1 --set data.test_images=8 --out photos-to-predict");
    let lines = commands("README.md");
    assert!(lines.len() > 8, "{lines:?}");
    for line in &lines {
        carry_out(&place, line);
    }
    let presets: Value = serde_json::from_str(&place.succeed("config list --json")).expect("JSON");
    assert!(presets.as_array().is_some_and(|presets| presets.len() > 10), "{presets}");
}

/// Commands whose examples need a job, a run under way, or one that failed. Other tests have these.
const OF_OTHER_RUNS: &[&str] = &["diagnose", "status", "logs", "cancel", "join", "leave"];

/// Returns the examples of a command's help, without comments.
fn of_help(place: &Place, command: &str) -> Vec<String> {
    let help = place.succeed(&format!("{command} --help"));
    let examples = help.split_once("Examples:").map_or("", |(_, examples)| examples);
    let lines = examples.lines().map(str::trim).filter(|line| line.starts_with("phalanx "));
    lines.map(|line| line.split("  #").next().unwrap_or_default().trim().to_owned()).collect()
}

/// An example of the help as it is carried out: what trains, queues, serves or waits is only planned.
fn as_carried_out(line: &str) -> String {
    let line = line.split(" > ").next().unwrap_or_default();
    match line.split(' ').nth(1).unwrap_or_default() {
        "train" if line.contains("--resume") => line.to_owned(),
        "train" | "submit" | "study" | "sweep" if !line.contains("--dry-run") && line != "phalanx study" => {
            format!("{line} --dry-run")
        }
        "find-lr" => line.replace("shapes-cvae", "tiny"),
        "serve" => format!("{line} --help"),
        "data" => line.replace("--out photos", "--out more"),
        "watch" if line.contains("--ask") => format!("{line} --help"),
        _ => line.to_owned(),
    }
}

#[test]
fn the_examples_of_the_help_work() {
    let place = Place::new();
    place.succeed("data write --data shapes --per-class 4 --set data.test_images=16 --out photos");
    let own = "--set checkpoint.best=test_accuracy --set log.trace=all";
    for run in ["runs/first", "runs/second", "runs/a", "runs/b"] {
        place.succeed(&format!(
            "train photos-resnet18 --data folder=photos --ranks 2 --out {run} {own} {SHORT}"
        ));
    }
    place.succeed(&format!("train shapes-cvae --ranks 1 --out runs/texts {SHORT}"));
    place.succeed(
        "train tiny-gpt --ranks 1 --out runs/words --set train.steps=2 --set model.layers=1 --set eval.limit=4",
    );
    place.succeed(
        "train tiny-translation --ranks 1 --out runs/pairs --set train.steps=2 --set model.layers=1 --set eval.limit=4",
    );
    place.write("lines.txt", "every bird sees a cat .\ntwo cats see a bird .\n");
    place.write("book.txt", "Once upon a time there was a token.\n".repeat(40));
    place.write(
        "sweep.toml",
        "about = \"Which rate?\"\nextends = \"tiny\"\n[[axis]]\nkey = \"optim.lr\"\nvalues = [0.1, 0.2]\n",
    );
    let help = place.succeed("--help");
    let groups = help.split("Options:").next().unwrap_or_default();
    let commands: Vec<&str> = groups
        .lines()
        .filter_map(|line| line.strip_prefix("  ").and_then(|line| line.split(' ').next()))
        .filter(|command| !command.is_empty() && !OF_OTHER_RUNS.contains(command))
        .collect();
    assert!(commands.len() > 16, "{help}");
    for command in commands {
        let examples = of_help(&place, command);
        assert!(command == "help" || examples.len() == 2, "{command}: {examples:?}");
        for line in examples {
            let line = as_carried_out(&line);
            // Pictures of texts and texts are made by other runs.
            let line = match command {
                "sample" => line.replace("runs/first", "runs/texts").replace("runs/second", "runs/texts"),
                // Probes of 512 samples take half a minute without optimizations.
                "explain" => {
                    let line = line.replace("runs/first", "runs/texts").replace("runs/second", "runs/texts");
                    format!("{} --samples 64", line.replace(" --samples 512", ""))
                }
                "translate" => line.replace("runs/first", "runs/pairs"),
                "write" => line.replace("runs/first", "runs/words").replace("Once upon", "a cat"),
                _ => line,
            };
            let line = line.strip_prefix("phalanx ").expect("a command");
            let output = place.command("").args(words(line)).output().expect("the program starts");
            assert!(output.status.success(), "{line}: {}\n{}", output.status, both(&output));
        }
    }
}
