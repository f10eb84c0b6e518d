//! Whole trainings by the program `phalanx`, each in its own processes, and their results.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};
use phalanx_config::Resolved;
use phalanx_run::{RunFolder, Summary};

/// The environment variable that makes the benchmark program run as `phalanx`. It is linked with the trainer, so a
/// measurement always uses the current build.
const AS_PHALANX: &str = "PHALANX_BENCH_AS_PHALANX";

/// Runs `phalanx` and returns its exit code, if the program was started as `phalanx`.
pub(crate) fn as_phalanx() -> Option<ExitCode> {
    std::env::var_os(AS_PHALANX).map(|_| phalanx::main(&phalanx::program()))
}

/// Returns the command `phalanx`, without arguments.
pub(crate) fn phalanx() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(AS_PHALANX, "1");
    Ok(command)
}

/// A training to run.
#[derive(Debug, Clone)]
pub(crate) struct Training {
    /// The name of the training and of its files.
    pub(crate) name: String,
    /// The configuration, as TOML.
    pub(crate) config: String,
    /// The images, as `phalanx train --data` takes them.
    pub(crate) data: String,
    /// Further assignments `section.key=value`.
    pub(crate) sets: Vec<String>,
}

impl Training {
    /// Writes the configuration into `folder`, and resolves and checks it.
    pub(crate) fn resolve(&self, folder: &Path) -> Result<Resolved> {
        let path = self.write(folder)?;
        let mut resolved = phalanx::program().resolve(&path.display().to_string(), &self.sets)?;
        let (option, (kind, path)) =
            (format!("--data {}", self.data), self.data.split_once('=').unwrap_or((&self.data, "")));
        resolved.set(&option, &format!("data.kind={kind}"))?;
        resolved.set(&option, &format!("data.path={path}"))?;
        Ok(resolved)
    }

    fn write(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join(format!("{}.toml", self.name));
        std::fs::write(&path, &self.config).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Runs the training in `folder` and reads its summary. `told` receives the line of every step.
    pub(crate) fn run(&self, folder: &Path, mut told: impl FnMut(&str)) -> Result<Summary> {
        let (config, out) = (self.write(folder)?, folder.join(&self.name));
        let mut command = phalanx()?;
        command.arg("train").arg(&config).args(["--data", &self.data]).arg("--out").arg(&out);
        for set in &self.sets {
            command.args(["--set", set]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start phalanx")?;
        let mut errors = child.stderr.take().context("the program has an error stream")?;
        let said = std::thread::spawn(move || {
            let mut said = String::new();
            // An unreadable line is not a message.
            let _ = errors.read_to_string(&mut said);
            said
        });
        let lines = BufReader::new(child.stdout.take().context("the program has an output")?).lines();
        for line in lines.map_while(Result::ok).filter(|line| line.trim_start().starts_with("step ")) {
            told(line.trim());
        }
        let status = child.wait()?;
        let said = said.join().unwrap_or_default();
        if !status.success() {
            let message = said.trim().trim_start_matches("error: ");
            bail!("{}", if message.is_empty() { status.to_string() } else { message.to_owned() });
        }
        Ok(Summary::read(&RunFolder::open(&out)?.summary())?)
    }
}

/// Creates the folder of the results: `wanted`, or a folder in `runs` named after the measurement and the time.
pub(crate) fn folder(wanted: Option<&Path>, what: &str) -> Result<PathBuf> {
    let named = || Path::new("runs").join(format!("{what}-{}", phalanx_run::timestamp()));
    let path = wanted.map_or_else(named, Path::to_owned);
    if std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{} is not empty; choose another folder with --out", path.display());
    }
    std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

/// Returns the peak memory of the largest rank, in bytes. `None` if the system does not report it.
pub(crate) fn peak_memory(summary: &Summary) -> Option<u64> {
    summary.ranks.iter().map(|rank| rank.peak_memory_bytes).collect::<Option<Vec<_>>>()?.into_iter().max()
}
