//! Starting a run again from step 1: its record so far is moved aside.

use std::fs;
use std::path::PathBuf;

use super::atomic::{create_synced, sync_folder};
use super::clock::timestamp;
use super::folder::{RunError, RunFolder};

/// Files and folders that a run keeps when it starts again: its lock and configuration, the run that it builds on, its
/// jobs, and the user's notes.
const KEPT: [&str; 8] =
    ["lock", "config.toml", "config.proposed.toml", "first", "secret", "job.sh", "job.json", "notes.md"];

impl RunFolder {
    /// Moves the record of the run so far into a new subfolder, `before-TIME`, with a copy of its configuration. Returns the subfolder.
    ///
    /// # Errors
    /// If a file cannot be moved.
    pub fn set_aside(&self) -> Result<PathBuf, RunError> {
        let aside = self.path().join(format!("before-{}", timestamp()));
        create_synced(&aside).map_err(RunError::io("create", &aside))?;
        let copy = aside.join("config.toml");
        fs::copy(self.config(), &copy).map_err(RunError::io("write", &copy))?;
        for entry in fs::read_dir(self.path()).map_err(RunError::io("read", self.path()))?.flatten() {
            let name = entry.file_name();
            let is_kept = KEPT.iter().any(|kept| name == *kept)
                || ["before-", "join"].iter().any(|start| name.to_string_lossy().starts_with(start));
            if !is_kept {
                fs::rename(entry.path(), aside.join(&name)).map_err(RunError::io("move", &entry.path()))?;
            }
        }
        for part in [self.checkpoints(), self.samples(), self.logs()] {
            create_synced(&part).map_err(RunError::io("create", &part))?;
        }
        // The moves reach the disk before the run writes the first of its new record.
        for folder in [aside.as_path(), self.path()] {
            sync_folder(folder).map_err(RunError::io("sync", folder))?;
        }
        Ok(aside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_moves_and_the_configuration_stays() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), "x").expect("new");
        fs::write(folder.config(), "a = 1").expect("writes");
        fs::write(folder.metrics(), "{}").expect("writes");
        fs::write(folder.checkpoints().join("latest"), "step-1").expect("writes");
        let aside = folder.set_aside().expect("moves");
        let read = |path: PathBuf| fs::read_to_string(path).expect("reads");
        assert_eq!(
            (read(folder.config()), read(aside.join("config.toml"))),
            ("a = 1".into(), "a = 1".into())
        );
        assert_eq!(read(aside.join("checkpoints/latest")), "step-1");
        assert!(aside.join("metrics.jsonl").is_file() && !folder.metrics().exists());
        assert!(folder.checkpoints().is_dir());
    }
}
