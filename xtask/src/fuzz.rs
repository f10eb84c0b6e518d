//! `cargo xtask fuzz`: coverage-guided fuzzing of every reader of external bytes, by libFuzzer.
//!
//! A reader has the folder `target/fuzz/READER`: `inputs` has known inputs, `found` inputs that reached new code,
//! `failed` inputs that broke a limit, and `log` is libFuzzer's output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::{cargo_path, code, root, target};

/// The flags of a build for libFuzzer, as in `cargo fuzz`. They work with the stable toolchain.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// The limits of one input: seconds, MiB of the whole process, and bytes of the input.
const LIMITS: [&str; 3] = ["-timeout=30", "-rss_limit_mb=4096", "-max_len=65536"];

/// The size limit of an archive of inputs in the tree, in bytes.
const MOST_KEPT: u64 = 96 << 10;

const HELP: &str = "\
Usage: cargo xtask fuzz [READER ...] [--minutes M] [--seed S] [--keep]
       cargo xtask fuzz READER FILE
       cargo xtask fuzz --list

Gives damaged bytes to readers of bytes from outside: all of them, or the named ones. FILE is read once instead.

  --minutes M   time in all, shared equally (default 1)
  --seed S      seed of the first changes (default 1)
  --keep        put the shortest inputs that reach all known code into the tree, as fuzz/corpus/READER.tar.gz
  --list        print the readers";

/// The arguments of the command line.
struct Arguments {
    readers: Vec<String>,
    file: Option<PathBuf>,
    minutes: f64,
    seed: u64,
    keep: bool,
    list: bool,
}

impl Arguments {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut parsed =
            Self { readers: Vec::new(), file: None, minutes: 1.0, seed: 1, keep: false, list: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--minutes" => {
                    parsed.minutes = value()?.parse().map_err(|error| format!("{word}: {error}"))?;
                }
                "--seed" => parsed.seed = value()?.parse().map_err(|error| format!("{word}: {error}"))?,
                "--keep" => parsed.keep = true,
                "--list" => parsed.list = true,
                option if option.starts_with('-') => {
                    return Err(format!("fuzz has no option {option}\n\n{HELP}"));
                }
                file if Path::new(file).is_file() => parsed.file = Some(Path::new(file).to_owned()),
                reader => parsed.readers.push(reader.to_owned()),
            }
        }
        if parsed.file.is_some() && parsed.readers.len() != 1 {
            return Err("a file is read by one reader: name it".to_owned());
        }
        Ok(parsed)
    }
}

pub(crate) fn fuzz(words: &[String]) -> Result<ExitCode, String> {
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    }
    let arguments = Arguments::parse(words)?;
    let program = match build()? {
        Ok(program) => program,
        Err(failed) => return Ok(failed),
    };
    let list =
        Command::new(&program).output().map_err(|error| format!("cannot start the fuzzer: {error}"))?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    if arguments.list {
        print!("{list}");
        return Ok(ExitCode::SUCCESS);
    }
    let known: Vec<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    if let Some(unknown) = arguments.readers.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("no reader `{unknown}`; `cargo xtask fuzz --list` prints them"));
    }
    let readers = if arguments.readers.is_empty() {
        known.into_iter().map(str::to_owned).collect()
    } else {
        arguments.readers.clone()
    };
    let seconds = (arguments.minutes * 60.0 / readers.len() as f64).ceil().max(1.0);
    let mut failed = false;
    for name in &readers {
        let reader = Reader { name, program: &program, folder: target().join("fuzz").join(name) };
        if let Some(file) = &arguments.file {
            let mut command = reader.command();
            let status =
                command.arg(file).status().map_err(|error| format!("cannot start the fuzzer: {error}"))?;
            return Ok(code(status));
        }
        failed |= !reader.search(seconds, arguments.seed)?;
        if arguments.keep {
            reader.keep()?;
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Builds the fuzzer in a separate target folder. Returns its path, or the exit code of a failed build.
fn build() -> Result<Result<PathBuf, ExitCode>, String> {
    // With `--target` the flags do not apply to build scripts and macros.
    let (host, folder) = (host()?, target().join("guided"));
    let mut command = Command::new(cargo_path());
    command.args(["build", "--package", "phalanx-fuzz", "--profile", "fuzz", "--target", &host]);
    command.arg("--target-dir").arg(&folder).env("RUSTFLAGS", FLAGS).current_dir(root());
    let status = command.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    let program =
        folder.join(host).join("fuzz").join(format!("phalanx-fuzz{}", std::env::consts::EXE_SUFFIX));
    Ok(if status.success() { Ok(program) } else { Err(code(status)) })
}

/// A reader and its folder.
struct Reader<'a> {
    name: &'a str,
    program: &'a Path,
    folder: PathBuf,
}

impl Reader<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.env("PHALANX_FUZZ_READER", self.name).env("PHALANX_FUZZ_INPUTS", &self.folder).args(LIMITS);
        command
    }

    /// Searches for inputs that break a limit. Returns true if it finds none.
    fn search(&self, seconds: f64, seed: u64) -> Result<bool, String> {
        let in_folder = |name: &str| self.folder.join(name);
        for folder in ["inputs", "found", "failed"] {
            make(&in_folder(folder))?;
        }
        let log = in_folder("log");
        let output =
            fs::File::create(&log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let mut command = self.command();
        command
            .args([
                format!("-max_total_time={seconds}"),
                format!("-seed={seed}"),
                "-print_final_stats=1".to_owned(),
            ])
            .arg(format!("-dict={}", in_folder("words.dict").display()))
            .arg(format!("-artifact_prefix={}/", in_folder("failed").display()))
            .args([in_folder("found"), in_folder("inputs")])
            .stderr(output);
        let status = command.status().map_err(|error| format!("cannot start the fuzzer: {error}"))?;
        println!("{:<18} {}", self.name, summary(&read(&log)?));
        if !status.success() {
            println!("  failed: see {} and {}", in_folder("failed").display(), log.display());
        }
        Ok(status.success())
    }

    /// Writes the smallest set of inputs with the full known coverage to the tree.
    fn keep(&self) -> Result<(), String> {
        let [merged, kept] = ["merged", "kept"].map(|name| self.folder.join(name));
        for folder in [&merged, &kept] {
            let _ = fs::remove_dir_all(folder);
            make(folder)?;
        }
        let mut merge = self.command();
        merge.arg("-merge=1").arg(&merged).args(["found", "inputs"].map(|name| self.folder.join(name)));
        let merge = merge.output().map_err(|error| format!("cannot start the fuzzer: {error}"))?;
        if !merge.status.success() {
            return Err(format!("{}: merging failed: {}", self.name, String::from_utf8_lossy(&merge.stderr)));
        }
        let cannot = |error: std::io::Error| format!("cannot keep inputs of {}: {error}", self.name);
        let mut inputs = Vec::new();
        for entry in fs::read_dir(&merged).map_err(cannot)? {
            inputs.push(fs::read(entry.map_err(cannot)?.path()).map_err(cannot)?);
        }
        inputs.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        let (mut bytes, all) = (0, inputs.len());
        inputs.retain(|input| {
            bytes += input.len() as u64;
            bytes <= MOST_KEPT
        });
        for (number, input) in inputs.iter().enumerate() {
            fs::write(kept.join(format!("{number:04}")), input).map_err(cannot)?;
        }
        let archive = root().join("fuzz/corpus").join(format!("{}.tar.gz", self.name));
        // Equal inputs give equal bytes.
        let pack = "tar --format=ustar --sort=name --owner=0 --group=0 --mode=644 --mtime=@0 -cf - -- * | gzip -9n > \"$ARCHIVE\"";
        let status =
            Command::new("sh").args(["-c", pack]).env("ARCHIVE", &archive).current_dir(&kept).status();
        if !status.map_err(cannot)?.success() {
            return Err(format!("cannot write {}", archive.display()));
        }
        println!("  {}: {} of {all} inputs", archive.display(), inputs.len());
        Ok(())
    }
}

/// The numbers of a run in libFuzzer's log.
fn summary(log: &str) -> String {
    let stat = |name: &str| {
        let line = log.lines().find_map(|line| line.strip_prefix(&format!("stat::{name}:")));
        line.map_or("?", str::trim).to_owned()
    };
    // `#4711 DONE cov: 12 ft: 34 corp: 5/67b …`
    let reached = log.lines().rev().find_map(|line| line.split_once("cov: ")?.1.split(' ').next());
    format!(
        "{:>10} inputs, {:>6} edges, at most {:>4} MiB and {:>3} s",
        stat("number_of_executed_units"),
        reached.unwrap_or("?"),
        stat("peak_rss_mb"),
        stat("slowest_unit_time_sec")
    )
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))
}

fn read(file: &Path) -> Result<String, String> {
    let bytes = fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the target triple of the compiler.
fn host() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output =
        Command::new(rustc).arg("-vV").output().map_err(|error| format!("cannot start rustc: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "`rustc -vV` names no host".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_summed_up() {
        let log = "#2\tINITED cov: 3 ft: 4 corp: 1/1b\n#9\tDONE   cov: 12 ft: 34 corp: 5/67b\n\
                   stat::number_of_executed_units: 9\nstat::peak_rss_mb: 41\nstat::slowest_unit_time_sec: 0\n";
        assert_eq!(summary(log), "         9 inputs,     12 edges, at most   41 MiB and   0 s");
        assert!(summary("").contains("? inputs"));
    }

    #[test]
    fn arguments_are_readers_options_or_a_file() {
        let parse = |words: &[&str]| {
            Arguments::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        let parsed = parse(&["frames", "--minutes", "2.5", "--keep", "mail"]).expect("sound");
        assert!(parsed.readers == ["frames", "mail"] && parsed.minutes == 2.5 && parsed.keep && !parsed.list);
        assert!(
            parse(&["--often"]).is_err() && parse(&["--seed"]).is_err() && parse(&["Cargo.toml"]).is_err()
        );
    }
}
