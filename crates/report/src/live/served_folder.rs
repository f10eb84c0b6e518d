//! Resolves paths within the served folder.

use std::path::{Component, Path, PathBuf};

/// The served folder. No path outside of it is accessible.
#[derive(Debug, Clone)]
pub(super) struct ServedFolder {
    root: PathBuf,
}

/// The folders of a run whose files a report reads; the empty path is the run's folder.
const PARTS: [&str; 4] = ["", "samples", "evaluation", "logs"];

impl ServedFolder {
    /// Opens a folder.
    ///
    /// # Errors
    /// If there is no such folder.
    pub(super) fn new(root: &Path) -> std::io::Result<Self> {
        Ok(Self { root: root.canonicalize()? })
    }

    /// Returns the canonical path of the folder.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of a folder relative to the served one; `None` if it is outside or no UTF-8.
    pub(super) fn relative(&self, folder: &Path) -> Option<String> {
        folder.strip_prefix(&self.root).ok()?.to_str().map(str::to_owned)
    }

    /// Resolves a relative path of plain names. Returns `None` if it does not exist, or leads out of the folder, also
    /// by symbolic links.
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

    /// Returns true if no symbolic link in the run's folders leads out of the served folder.
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

impl ServedFolder {
    /// Returns true if no symbolic link leads out of the served folder from the folder of a sweep and from its runs, which
    /// a report would read.
    pub(super) fn holds_sweep(&self, sweep: &Path) -> bool {
        let inside = |path: &Path| path.canonicalize().is_ok_and(|path| path.starts_with(&self.root));
        [sweep.to_owned(), sweep.join("runs")].iter().all(|folder| {
            let entries = || std::fs::read_dir(folder).into_iter().flatten().flatten();
            folder.symlink_metadata().is_err()
                || inside(folder)
                    && entries()
                        .map(|entry| entry.path())
                        .filter(|path| path.is_dir())
                        .all(|path| inside(&path) && self.holds_run(&path))
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
        let served = ServedFolder::new(&root).expect("a folder");
        assert!(
            served.find("a/config.toml").is_some()
                && served.find("a/").is_some()
                && served.find("").is_some()
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
            assert_eq!(served.find(path), None, "{path:?}");
        }
        assert!(served.holds_run(&root.join("a")));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(root.join("a/config.toml"), root.join("a/link")).expect("links");
            assert!(served.find("a/link").is_some() && served.holds_run(&root.join("a")), "it stays inside");
            std::os::unix::fs::symlink(place.path().join("secret"), root.join("a/samples/step-00000001.png"))
                .expect("links");
            assert_eq!(served.find("a/samples/step-00000001.png"), None);
            assert!(!served.holds_run(&root.join("a")));
            std::os::unix::fs::symlink(place.path(), root.join("up")).expect("links");
            assert_eq!(served.find("up/secret"), None);
            std::fs::create_dir(root.join("b")).expect("a folder");
            std::os::unix::fs::symlink(place.path().join("runs-of-others"), root.join("b/logs"))
                .expect("links");
            assert!(!served.holds_run(&root.join("b")));
            std::fs::create_dir_all(root.join("s/runs/x")).expect("a folder");
            assert!(served.holds_sweep(&root.join("s")));
            std::os::unix::fs::symlink(place.path().join("runs-of-others"), root.join("s/runs/y"))
                .expect("links");
            assert!(!served.holds_sweep(&root.join("s")));
        }
    }
}
