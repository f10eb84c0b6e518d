//! Whole trainings by the program `phalanx`, each in processes of its own, and what they report.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};
use phalanx_run::{RunFolder, Summary};
use phalanx_trainer::config::Resolved;

/// In an environment with this variable the benchmarks' program is `phalanx` itself: the trainer that they are linked with,
/// so that what is measured is always what was built.
const AS_PHALANX: &str = "PHALANX_BENCH_AS_PHALANX";

/// The exit code of the program if it was started as `phalanx`.
pub(crate) fn as_phalanx() -> Option<ExitCode> {
    std::env::var_os(AS_PHALANX).map(|_| phalanx::main(&phalanx::program()))
}

/// The program `phalanx`, to be given arguments.
pub(crate) fn phalanx() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(AS_PHALANX, "1");
    Ok(command)
}

/// A training to run.
#[derive(Debug, Clone)]
pub(crate) struct Training {
    /// Its name among others, which is that of its files.
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

    /// Runs it in `folder` and reads its summary; `told` hears every line of a step.
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
            // What cannot be read is no message.
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

/// The folder that results go to, made anew: `wanted`, or one in `runs` named after what is measured and the time.
pub(crate) fn folder(wanted: Option<&Path>, what: &str) -> Result<PathBuf> {
    let named = || Path::new("runs").join(format!("{what}-{}", phalanx_run::timestamp()));
    let path = wanted.map_or_else(named, Path::to_owned);
    if std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("{} is not empty; choose another folder with --out", path.display());
    }
    std::fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

/// The largest memory of any rank, in bytes; `None` where the system does not say.
pub(crate) fn peak_memory(summary: &Summary) -> Option<u64> {
    summary.ranks.iter().map(|rank| rank.peak_memory_bytes).collect::<Option<Vec<_>>>()?.into_iter().max()
}
