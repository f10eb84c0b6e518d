//! Paths that do not lead out of a folder.

use std::path::{Component, Path, PathBuf};

/// A folder, and what is in it.
#[derive(Debug, Clone)]
pub(super) struct Inside {
    root: PathBuf,
}

/// Folders of a run whose files its report reads, the run's own among them.
const PARTS: [&str; 3] = ["", "samples", "logs"];

impl Inside {
    /// Opens a folder.
    ///
    /// # Errors
    /// If there is no such folder.
    pub(super) fn new(root: &Path) -> std::io::Result<Self> {
        Ok(Self { root: root.canonicalize()? })
    }

    /// The folder, without links.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Resolves a relative path: `None` if it does not exist, leads out of the folder by its words or by links, or is
    /// no relative path of plain names.
    pub(super) fn find(&self, path: &str) -> Option<PathBuf> {
        if path.contains(['\0', '\\']) {
            return None;
        }
        let relative = Path::new(path.trim_end_matches('/'));
        if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
            return None;
        }
        let found = self.root.join(relative).canonicalize().ok()?;
        found.starts_with(&self.root).then_some(found)
    }

    /// Returns true if no file that a report reads of a run leads out of the folder by a link.
    pub(super) fn holds_run(&self, run: &Path) -> bool {
        PARTS.iter().all(|part| {
            let folder = run.join(part);
            if folder.symlink_metadata().is_err() {
                return true;
            }
            let inside =
                |path: PathBuf| path.canonicalize().map_or(true, |path| path.starts_with(&self.root));
            let links = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let mut links = links.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
            inside(folder) && links.all(|link| inside(link.path()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().join("runs");
        std::fs::create_dir_all(root.join("a/samples")).expect("a folder");
        std::fs::write(root.join("a/config.toml"), "x").expect("writes");
        std::fs::write(place.path().join("secret"), "x").expect("writes");
        // Next to the folder, and with a name that begins with the folder's.
        std::fs::create_dir(place.path().join("runs-of-others")).expect("a folder");
        std::fs::write(place.path().join("runs-of-others/secret"), "x").expect("writes");
        let inside = Inside::new(&root).expect("a folder");
        assert!(
            inside.find("a/config.toml").is_some()
                && inside.find("a/").is_some()
                && inside.find("").is_some()
        );
        let secret = place.path().join("secret").display().to_string();
        for path in [
            "../secret",
            "a/../../secret",
            "..",
            "a/..",
            ".",
            "./a",
            secret.as_str(),
            "/etc/passwd",
            "a\0",
            "a/config.toml\0.png",
            "..\\secret",
            "none",
            "../runs-of-others/secret",
        ] {
            assert_eq!(inside.find(path), None, "{path:?}");
        }
        assert!(inside.holds_run(&root.join("a")));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(root.join("a/config.toml"), root.join("a/link")).expect("links");
            assert!(inside.find("a/link").is_some() && inside.holds_run(&root.join("a")), "it stays inside");
            std::os::unix::fs::symlink(place.path().join("secret"), root.join("a/samples/step-00000001.png"))
                .expect("links");
            assert_eq!(inside.find("a/samples/step-00000001.png"), None);
            assert!(!inside.holds_run(&root.join("a")));
            std::os::unix::fs::symlink(place.path(), root.join("up")).expect("links");
            assert_eq!(inside.find("up/secret"), None);
            std::fs::create_dir(root.join("b")).expect("a folder");
            std::os::unix::fs::symlink(place.path().join("runs-of-others"), root.join("b/logs"))
                .expect("links");
            assert!(!inside.holds_run(&root.join("b")));
        }
    }
}
