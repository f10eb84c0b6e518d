//! What was compiled before, as files: one for each source, architecture and version of the compiler.

use std::fs;
use std::path::{Path, PathBuf};

/// Where compiled kernels are kept unless somebody says otherwise: `phalanx/kernels` in the user's folder for caches. None if
/// the environment names no such folder.
pub fn default_folder() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
    Some(caches.join("phalanx").join("kernels"))
}

/// The file of one source.
#[derive(Debug)]
pub(super) struct Entry(PathBuf);

/// What the file begins with: a hash of what follows, so that half a file is none.
const HASH: usize = 32;

impl Entry {
    /// The entry for what was made of `parts`, in which anything that changes the code must be.
    pub(super) fn new(folder: &Path, name: &str, parts: &[&str]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Self(folder.join(format!("{name}-{}.bin", &hasher.finalize().to_hex()[..32])))
    }

    /// What is kept; nothing if there is no file, or a damaged one.
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        let mut kept = fs::read(&self.0).ok()?;
        let code = kept.split_off(HASH.min(kept.len()));
        (kept == blake3::hash(&code).as_bytes()).then_some(code)
    }

    /// Keeps code, under a name of its own first, so that other processes see all of it or nothing. A folder that cannot be
    /// written is like one that was emptied: the next process compiles again.
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
    fn what_was_kept_is_read_and_what_was_damaged_is_not() {
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
