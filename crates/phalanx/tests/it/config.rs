//! Configurations: composition, and what is said about every kind of mistake.

use std::path::Path;

use phalanx_config::{ConfigError, Detail, Origin, Resolved};

/// Files by name, the first of which is resolved; options; and what is said.
type Case = (&'static [(&'static str, &'static str)], &'static [&'static str], &'static str);

/// Composes a configuration of `phalanx`.
fn resolve(name: &str, sets: &[String]) -> Result<Resolved, ConfigError> {
    phalanx::program().resolve(name, sets)
}

/// The names of its presets.
fn presets() -> Vec<String> {
    phalanx::program().catalogue().presets.iter().map(|(name, _)| name.clone()).collect()
}

/// Writes files into a fresh folder, resolves the first, and gives the folder's name away to the expectations.
fn message(files: &[(&str, &str)], sets: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let first = folder.path().join(files[0].0);
    let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
    let outcome =
        resolve(first.to_str().unwrap(), &sets).and_then(|resolved| resolved.validate().map(|()| resolved));
    let text = match outcome {
        Ok(resolved) => format!("ok {}", resolved.config.train.global_batch),
        Err(error) => error.to_string(),
    };
    let tasks: Vec<String> =
        phalanx::program().catalogue().tasks.iter().map(|task| format!("`{}`", task.name())).collect();
    text.replace(&format!("{}/", folder.path().display()), "").replace(&tasks.join(", "), "TASKS")
}

#[test]
fn every_mistake_names_key_file_and_line() {
    const BASE: &str = "[train]\nglobal_batch = 32\n";
    let cases: &[Case] = &[
        (
            &[("a.toml", "[train]\n\nglbal_batch = 8\n")],
            &[],
            "a.toml:3: unknown key train.glbal_batch; did you mean train.global_batch?",
        ),
        (
            &[("a.toml", "[model]\nkind = \"cvae\"\n[trian]\nseed = 1\n")],
            &[],
            "a.toml:4: unknown key trian.seed; did you mean train.seed?",
        ),
        (
            &[("a.toml", "[data]\nglobal_batch = 1\n")],
            &[],
            "a.toml:2: unknown key data.global_batch; did you mean train.global_batch?",
        ),
        (&[("a.toml", "seed = 1\n")], &[], "a.toml:1: unknown key seed; did you mean train.seed?"),
        (&[("a.toml", "[qqq]\nzzz = 1\n")], &[], "a.toml:2: unknown key qqq.zzz"),
        (
            &[("a.toml", "train = { seed = 1, sed = 2 }\n")],
            &[],
            "a.toml:1: unknown key train.sed; did you mean train.seed?",
        ),
        (&[("a.toml", "train.sed = 2\n")], &[], "a.toml:1: unknown key train.sed; did you mean train.seed?"),
        (
            &[("a.toml", "train = 3\n")],
            &[],
            "a.toml:1: train: expected a section, `[train]`, found the integer 3",
        ),
        (
            &[("a.toml", "[optim]\nlr = \"fast\"\n")],
            &[],
            "a.toml:2: optim.lr: expected a finite number, found the string \"fast\"",
        ),
        (
            &[("a.toml", "[optim]\nlr = nan\n")],
            &[],
            "a.toml:2: optim.lr: expected a finite number, found the number nan",
        ),
        (
            &[("a.toml", "# x\n\n[train]\nsteps = -3\n")],
            &[],
            "a.toml:4: train.steps: expected a non-negative integer, found the integer -3",
        ),
        (
            &[("a.toml", "[train]\nsteps = 1.5\n")],
            &[],
            "a.toml:2: train.steps: expected a non-negative integer, found the number 1.5",
        ),
        (
            &[("a.toml", "[model]\nkind = \"resnet19\"\n")],
            &[],
            "a.toml:2: model.kind: expected one of TASKS, found the string \"resnet19\"; did you mean resnet18?",
        ),
        (
            &[("a.toml", "[model]\nwidths = [8, \"x\"]\n")],
            &[],
            "a.toml:2: model.widths: expected a non-negative integer, found the string \"x\"",
        ),
        (
            &[("a.toml", "[model]\nkind = \"stackgan\"\ngf_dim = 2_147_483_648\n")],
            &[],
            "a.toml:3: model.gf_dim: expected an integer of at most 2147483647, found the integer 2147483648",
        ),
        (
            &[("a.toml", "[model]\nkind = \n")],
            &[],
            "a.toml:2: string values must be quoted, expected literal string",
        ),
        (&[("a.toml", "extends = 3\n")], &[], "a.toml:1: extends: expected a string, found the integer 3"),
        (
            &[("a.toml", "extends = \"tinny\"\n")],
            &[],
            "a.toml:1: there is no preset `tinny`; did you mean tiny?; `phalanx config list` lists the presets, and a file's name ends in .toml",
        ),
        (
            &[("a.toml", "\nextends = \"a.toml\"\n")],
            &[],
            "a.toml:2: `extends` goes round in a circle: a.toml -> a.toml",
        ),
        (
            &[
                ("a.toml", "extends = \"b.toml\"\n"),
                ("b.toml", "extends = \"sub/c.toml\"\n"),
                ("sub/c.toml", "# c\nextends = \"../b.toml\"\n"),
            ],
            &[],
            "sub/c.toml:2: `extends` goes round in a circle: b.toml -> sub/c.toml -> sub/../b.toml",
        ),
        (
            &[("a.toml", "extends = \"b.toml\"\n"), ("b.toml", "[log]\nevery = \"x\"\n")],
            &[],
            "b.toml:2: log.every: expected a non-negative integer, found the string \"x\"",
        ),
        (&[("a.toml", BASE)], &["train.seed"], "--set train.seed: expected section.key=value"),
        (
            &[("a.toml", BASE)],
            &["train.sed=3"],
            "--set train.sed=3: unknown key train.sed; did you mean train.seed?",
        ),
        (
            &[("a.toml", BASE)],
            &["train.seed=abc"],
            "--set train.seed=abc: train.seed: expected a non-negative integer, found the string \"abc\"",
        ),
        (&[("a.toml", BASE)], &["train.global_batch=48", "data.path=2024"], "ok 48"),
        (
            &[("a.toml", BASE)],
            &["train.ranks=100"],
            "a.toml:2: train.global_batch 32 is not at least train.ranks 100 x train.accumulate 1 = 100",
        ),
        (
            &[("a.toml", BASE)],
            &["train.ranks=20", "train.accumulate=2"],
            "a.toml:2: train.global_batch 32 is not at least train.ranks 20 x train.accumulate 2 = 40",
        ),
        (
            &[("a.toml", BASE)],
            &["train.strategy=pipeline"],
            "--set train.strategy=pipeline: train.strategy: strategy `pipeline` is an axis of the mesh (--parallel pipeline=2), no strategy; there is: dp, ddp, zero1, zero2, fsdp, hsdp, \
            ps-bsp, ps-ssp, ps-asp, local-sgd, post-local-sgd, diloco, d-psgd, ad-psgd, sgp",
        ),
        (
            &[("a.toml", BASE)],
            &["data.kind=cifar10"],
            "--set data.kind=cifar10: data.kind = cifar10 needs data.path, or the option --data cifar10=PATH",
        ),
        (
            &[("a.toml", BASE)],
            &["model.image_size=20"],
            "--set model.image_size=20: model.image_size 20 is not a multiple of 8, as 3 model.widths halve it",
        ),
        (
            &[("a.toml", BASE)],
            &["model.kind=mlp", "model.mlp_width=0", "model.mlp_depth=0"],
            "--set model.mlp_width=0: model.mlp_width = 0 is not at least 1\n--set model.mlp_depth=0: model.mlp_depth = 0 is not at least 1",
        ),
        (
            &[("a.toml", BASE)],
            &["optim.betas=[0.9]", "train.ema=1"],
            "--set train.ema=1: train.ema = 1 is not in [0, 1)\n--set optim.betas=[0.9]: optim.betas = [0.9] is not a pair of numbers in [0, 1)",
        ),
        (
            &[("a.toml", "[train]\nsed = 1\n[optim]\nlr = true\n")],
            &[],
            "a.toml:2: unknown key train.sed; did you mean train.seed?\na.toml:4: optim.lr: expected a finite number, found the boolean true",
        ),
    ];
    let wrong: Vec<String> = cases
        .iter()
        .map(|(files, sets, expected)| (message(files, sets), expected))
        .filter(|(found, expected)| found != *expected)
        .map(|(found, expected)| format!("expected {expected}\nfound    {found}\n"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn later_layers_override_earlier_ones() {
    let base = "[train]\nglobal_batch = 32\nseed = 5\n[optim]\nlr = 0.5\n";
    let top = "extends = \"base.toml\"\n[train]\nseed = 6\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("base.toml"), base).unwrap();
    std::fs::write(folder.path().join("top.toml"), top).unwrap();
    let top = folder.path().join("top.toml");
    let sets = ["optim.lr=0.25".to_owned(), "optim.lr=0.125".to_owned()];
    let resolved = resolve(top.to_str().unwrap(), &sets).unwrap();
    let config = &resolved.config;
    assert_eq!((config.train.global_batch, config.train.seed, config.optim.lr), (32, 6, 0.125));
    assert_eq!(resolved.name, "top");
    assert_eq!(resolved.origin("optim.lr"), Origin::Option("--set optim.lr=0.125".to_owned()));
    let line = |name: &str, line| Origin::Line { file: folder.path().join(name).display().to_string(), line };
    assert_eq!(resolved.origin("train.seed"), line("top.toml", 3));
    assert_eq!(resolved.origin("train.global_batch"), line("base.toml", 2));
    assert_eq!(resolved.origin("train.steps"), Origin::Default);
}

#[test]
fn every_preset_resolves_validates_and_survives_being_written() {
    for name in &presets() {
        let has_files = ["cifar10", "cub", "photos"].iter().any(|data| name.starts_with(data));
        let sets = if has_files { vec!["data.path=somewhere".to_owned()] } else { Vec::new() };
        let resolved = resolve(name, &sets).unwrap();
        resolved.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(resolved.description.is_some(), "{name} has no description");
        for detail in [Detail::Full, Detail::Values] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("config.toml");
            std::fs::write(&path, resolved.to_toml(detail)).unwrap();
            let again = resolve(path.to_str().unwrap(), &[]).unwrap();
            assert_eq!(again.config, resolved.config, "{name}");
        }
    }
    let sixty_four = ["model.image_size=64".to_owned(), "data.path=x".to_owned()];
    resolve("cifar10-cvae", &sixty_four).unwrap().validate().unwrap();
}

#[test]
fn every_key_is_documented_and_every_preset_file_is_listed() {
    let phalanx = phalanx::program();
    for task in &phalanx.catalogue().tasks {
        let kind = format!("model.kind={}", task.name());
        let defaults = phalanx.catalogue().resolve(None, &[kind]).unwrap();
        assert!(!task.about().is_empty(), "{}", task.name());
        let mut seen = std::collections::BTreeSet::new();
        for key in defaults.config.keys() {
            assert!(key.meaning.len() > 10 && key.meaning.ends_with('.'), "{}: {:?}", key.path, key.meaning);
            assert!(seen.insert(key.path.clone()), "{} twice", key.path);
            if key.path == "model.kind" {
                continue;
            }
            assert_eq!(defaults.config.get(&key.path), Some(key.default.clone()), "{}", key.path);
            // What a key is written as must be what it can be read from.
            let mut config = defaults.config.clone();
            config.set(&key.path, &key.default).unwrap().unwrap();
            assert_eq!(config, defaults.config);
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let mut names = presets();
    files.sort();
    names.sort();
    assert_eq!(files, names);
}

#[test]
fn each_task_has_keys_of_its_own() {
    let kinds = "expected one of `cvae`, `clip`, `resnet18`, `resnet34`, `resnet50`";
    let cases: &[(&str, &[&str], &str)] = &[
        // A value that a lower layer has set for another task is ignored; one next to the choice is an error.
        ("tiny", &["model.kind=resnet18", "model.width=8"], "ok"),
        (
            "tiny",
            &["model.kind=resnet18", "model.latent=8"],
            "--set model.latent=8: model.latent is a key of cvae; model.kind is resnet18",
        ),
        (
            "cifar10-resnet18",
            &["train.label_smoothing=0.2"],
            "--set train.label_smoothing=0.2: unknown key train.label_smoothing; did you mean model.label_smoothing?",
        ),
        (
            "tiny",
            &["model.kind=mlp", "model.mlp_widht=8"],
            "--set model.mlp_widht=8: unknown key model.mlp_widht; did you mean model.mlp_width?",
        ),
        ("tiny", &["model.kind=resnet"], kinds),
        // Keys of a network are those that decide how it is updated.
        ("tiny", &["critic.optim.lr=-1"], "optim.lr = -1 is negative"),
        (
            "tiny",
            &["critic.optim.lr=x"],
            "--set critic.optim.lr=x: critic.optim.lr: expected a finite number",
        ),
        ("tiny", &["critic.train.ranks=2"], "unknown key critic.train.ranks; did you mean train.ranks?"),
    ];
    for (preset, sets, expected) in cases {
        let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
        let said = resolve(preset, &sets).and_then(|resolved| resolved.validate_without_images());
        let said = said.map_or_else(|error| error.to_string(), |()| "ok".to_owned());
        assert!(said.contains(expected), "{said}\ndoes not contain\n{expected}");
    }
}

#[test]
fn keys_of_a_network_are_written_and_read_again() {
    let sets = ["critic.optim.lr=0.5", "critic.train.ema=0.9", "optim.lr=0.25"].map(str::to_owned);
    let resolved = resolve("tiny", &sets).unwrap();
    let lr = |network: &str| resolved.config.for_network(network).optim.lr;
    assert_eq!((lr("critic"), lr("generator"), resolved.config.optim.lr), (0.5, 0.25, 0.25));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, resolved.to_toml(Detail::Values)).unwrap();
    assert_eq!(resolve(path.to_str().unwrap(), &[]).unwrap().config, resolved.config);
}
