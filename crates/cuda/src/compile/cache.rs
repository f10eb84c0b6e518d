//! A cache of compiled kernels: a file for each source, architecture and compiler version.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the default cache folder: `phalanx/kernels` in the user's cache folder. None if the environment names none.
pub fn default_folder() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
    Some(caches.join("phalanx").join("kernels"))
}

/// The file of one source.
#[derive(Debug)]
pub(super) struct Entry(PathBuf);

/// The length of the hash at the beginning of the file, which detects truncated files.
const HASH: usize = 32;

impl Entry {
    /// Returns the entry for a source. `parts` must contain everything that changes the code.
    pub(super) fn new(folder: &Path, name: &str, parts: &[&str]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Self(folder.join(format!("{name}-{}.bin", &hasher.finalize().to_hex()[..32])))
    }

    /// Returns the cached code. None if the file is missing or damaged.
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        let mut kept = fs::read(&self.0).ok()?;
        let code = kept.split_off(HASH.min(kept.len()));
        (kept == blake3::hash(&code).as_bytes()).then_some(code)
    }

    /// Writes code to a temporary file and renames it, so that other processes see a whole file or none. Errors are ignored: the
    /// next process compiles again.
    pub(super) fn write(&self, code: &[u8]) {
        let temporary = self.0.with_extension(format!("{}.part", std::process::id()));
        let mut kept = blake3::hash(code).as_bytes().to_vec();
        kept.extend_from_slice(code);
        let written = self.0.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok())
            && fs::write(&temporary, kept).is_ok()
            && fs::rename(&temporary, &self.0).is_ok();
        if !written {
            let _ = fs::remove_file(&temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_unless_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let entry = Entry::new(&folder.path().join("below"), "sums", &["text", "sm_90", "13.0"]);
        assert_eq!(entry.read(), None);
        entry.write(b"code");
        assert_eq!(entry.read().as_deref(), Some(&b"code"[..]));
        let other = Entry::new(&folder.path().join("below"), "sums", &["text", "sm_80", "13.0"]);
        assert_eq!(other.read(), None);
        let mut bytes = fs::read(&entry.0).expect("the file");
        bytes.pop();
        fs::write(&entry.0, bytes).expect("written");
        assert_eq!(entry.read(), None);
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let folder = Path::new("x");
        assert_ne!(Entry::new(folder, "a", &["ab", "c"]).0, Entry::new(folder, "a", &["a", "bc"]).0);
    }
}
