//! `cargo xtask chaos --flips N`: bits of checkpoints are flipped, one at a time, and the training is resumed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use phalanx_checkpoint::Hashes;
use serde_json::json;

use super::ChaosArgs;
use super::attempt::Outcome;
use super::damage::Damage;
use super::draws::RandomDraws;
use super::schedule::Attempt;

/// The worlds whose checkpoints are damaged: one file for each kind of state, and one for each rank.
const WORLDS: [(&str, usize); 2] = [("ddp", 1), ("fsdp", 2)];

fn attempt(world: usize, damage: Option<Damage>) -> Attempt {
    let (strategy, ranks) = WORLDS[world];
    Attempt { damage, ranks, strategy, elastic: None, events: Vec::new() }
}

/// Flips bits of the newest checkpoint of finished trainings. Each training must name the damage, continue from the checkpoint before
/// it, and end with the hashes of the undisturbed training.
pub(super) fn run(args: &ChaosArgs, flips: u64, place: &Path, expected: &Hashes) -> Result<()> {
    let deadline = Duration::from_secs_f64(args.deadline);
    for world in 0..WORLDS.len() {
        let folder = place.join(format!("whole-{world}"));
        fs::create_dir_all(&folder)?;
        check(&attempt(world, None), &folder, expected, deadline).context("the undisturbed training")?;
        // The damaged training is unfinished.
        fs::remove_file(folder.join("run/summary.json"))?;
    }
    let (begun, mut files, mut failures) = (Instant::now(), BTreeMap::<String, u64>::new(), Vec::new());
    for number in args.first..args.first + flips {
        let world = (number % WORLDS.len() as u64) as usize;
        let damage = Damage::flip(&mut RandomDraws::new(args.seed, "flips", number));
        let folder = place.join(format!("flip-{number}"));
        copy(&place.join(format!("whole-{world}")), &folder)?;
        match check(&attempt(world, Some(damage)), &folder, expected, deadline) {
            Ok(file) => {
                *files.entry(format!("{}, {file}", WORLDS[world].0)).or_default() += 1;
                fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
            }
            Err(error) => {
                println!("{number:5}  FAILED  {damage}\n       {error:#}");
                failures.push(format!("flip {number}: {error:#}"));
            }
        }
    }
    println!("\nflipped bits            {flips:6}");
    for (file, count) in &files {
        println!("  {count:6}  {file}");
    }
    println!(
        "named, older one used   {:6}   and ended with the hashes of the undisturbed training",
        files.values().sum::<u64>()
    );
    println!("failed                  {:6}", failures.len());
    println!("took                    {:6.0} s", begun.elapsed().as_secs_f64());
    let results = json!({ "seed": args.seed, "flips": flips, "files": files, "failures": failures });
    crate::write(args.json.as_deref(), &results)?;
    if !failures.is_empty() {
        bail!("{} flips failed; their folders are in {}", failures.len(), place.display());
    }
    fs::remove_dir_all(place).with_context(|| format!("cannot remove {}", place.display()))
}

/// Runs an attempt to its end and compares the hashes. Returns the name of the damaged file.
fn check(attempt: &Attempt, folder: &Path, expected: &Hashes, deadline: Duration) -> Result<String> {
    let result = attempt.run(folder, 1, &[], deadline)?;
    if result.outcome != Outcome::Finished {
        bail!("it has not finished: {:?}", result.outcome);
    }
    let found = super::hashes(folder)?;
    if found != *expected {
        bail!("it ended with other hashes: {found:?} in place of {expected:?}");
    }
    let name = result.damaged.as_deref().and_then(|path| path.file_name()?.to_str());
    Ok(name.unwrap_or_default().to_owned())
}

/// Copies a folder with everything in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).with_context(|| format!("cannot write {}", target.display()))?;
        }
    }
    Ok(())
}
