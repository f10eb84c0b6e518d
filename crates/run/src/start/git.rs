//! The commit of a folder in a git repository, read from the files of the repository.
//!
//! No library and no program is needed for the commit. The program `git` tells if files have changed since, where it is
//! installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The time after which `git` is not waited for.
const PATIENCE: Duration = Duration::from_secs(3);

/// The state of a git repository.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GitState {
    /// The commit, in hexadecimal digits.
    pub commit: String,
    /// The branch; missing if a commit was checked out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// True if files under version control differ from the commit; missing if `git` could not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<bool>,
}

impl std::fmt::Display for GitState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.commit)?;
        if let Some(branch) = &self.branch {
            write!(f, " of {branch}")?;
        }
        match self.dirty {
            Some(true) => f.write_str(", with uncommitted changes"),
            _ => Ok(()),
        }
    }
}

impl GitState {
    /// Reads the state of the repository that holds `folder`; `None` if there is none, or it has no commit yet.
    pub fn of(folder: &Path) -> Option<Self> {
        let marker = folder.ancestors().map(|folder| folder.join(".git")).find(|path| path.exists())?;
        let own = git_folder(&marker)?;
        let head = read(&own.join("HEAD"))?;
        let Some(name) = head.strip_prefix("ref: ") else {
            return is_commit(&head).then(|| Self { commit: head, branch: None, dirty: dirty(folder) });
        };
        // A worktree has a HEAD of its own and shares the branches.
        let shared = read(&own.join("commondir")).map_or_else(|| own.clone(), |path| own.join(path));
        let loose = read(&own.join(name)).or_else(|| read(&shared.join(name)));
        let commit = loose.or_else(|| packed(&shared, name)).filter(|commit| is_commit(commit))?;
        let branch = name.strip_prefix("refs/heads/").map(str::to_owned);
        Some(Self { commit, branch, dirty: dirty(folder) })
    }
}

/// Returns the folder of a repository: `.git` itself, or the one that the file `.git` of a worktree or submodule names.
fn git_folder(marker: &Path) -> Option<PathBuf> {
    if marker.is_dir() {
        return Some(marker.to_owned());
    }
    let text = read(marker)?;
    let folder = text.strip_prefix("gitdir: ")?;
    Some(marker.parent()?.join(folder))
}

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the commit of a reference in `packed-refs`.
fn packed(shared: &Path, name: &str) -> Option<String> {
    let text = read(&shared.join("packed-refs"))?;
    let of = |line: &str| {
        line.split_once(' ').filter(|(_, known)| *known == name).map(|(commit, _)| commit.to_owned())
    };
    text.lines().find_map(of)
}

/// Returns true for a hash of SHA-1 or SHA-256.
fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Asks `git` if files have changed; `None` without an answer in time.
fn dirty(folder: &Path) -> Option<bool> {
    let mut git = Command::new("git");
    // A monitor of the file system would outlive the question.
    git.args(["-c", "core.fsmonitor=false", "diff", "--quiet", "--no-ext-diff", "HEAD", "--"]);
    git.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = git.spawn().ok()?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().ok()? {
            Some(status) => break status,
            None if begun.elapsed() > PATIENCE => {
                // It may end at this moment.
                let _ = child.kill();
                child.wait().ok()?;
                return None;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    match status.code() {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
        fs::write(path, text).expect("writes");
    }

    #[test]
    fn commits_are_read_from_every_form_of_repository() {
        let place = tempfile::tempdir().expect("a folder");
        let all = place.path();
        let state = |name: &str| GitState::of(&all.join(name)).map(|state| (state.commit, state.branch));
        let main = || Some((COMMIT.to_owned(), Some("topic/a".to_owned())));
        write(&all.join("loose/.git/HEAD"), "ref: refs/heads/topic/a\n");
        assert_eq!(state("loose"), None, "no commit yet");
        write(&all.join("loose/.git/refs/heads/topic/a"), &format!("{COMMIT}\n"));
        fs::create_dir_all(all.join("loose/deep/er")).expect("makes");
        assert_eq!(state("loose/deep/er"), main());
        write(&all.join("packed/.git/HEAD"), "ref: refs/heads/topic/a\n");
        write(
            &all.join("packed/.git/packed-refs"),
            &format!(
                "# pack-refs with: peeled\n{} refs/heads/topic/ab\n{COMMIT} refs/heads/topic/a\n",
                "1".repeat(40)
            ),
        );
        assert_eq!(state("packed"), main());
        write(&all.join("detached/.git/HEAD"), &format!("{COMMIT}\n"));
        assert_eq!(state("detached"), Some((COMMIT.to_owned(), None)));
        write(&all.join("tree/.git"), "gitdir: ../packed/.git/worktrees/tree\n");
        write(&all.join("packed/.git/worktrees/tree/HEAD"), "ref: refs/heads/topic/a\n");
        write(&all.join("packed/.git/worktrees/tree/commondir"), "../..\n");
        assert_eq!(state("tree"), main());
        write(&all.join("damaged/.git/HEAD"), "ref: refs/heads/topic/a\n");
        write(&all.join("damaged/.git/refs/heads/topic/a"), "<<<<<<<\n");
        assert_eq!(state("damaged"), None);
    }

    #[test]
    fn changed_files_make_a_repository_dirty() {
        let place = tempfile::tempdir().expect("a folder");
        let git = |line: &str| {
            let all = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
            let mut git = Command::new("git");
            git.args(all).args(line.split(' ')).current_dir(place.path()).stdout(Stdio::null());
            git.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        if !git("init -q") {
            return;
        }
        write(&place.path().join("a"), "one");
        assert!(git("add a") && git("commit -qm first"));
        let state = GitState::of(place.path()).expect("a repository");
        assert_eq!(state.dirty, Some(false));
        write(&place.path().join("untracked"), "x");
        assert_eq!(GitState::of(place.path()), Some(state.clone()));
        write(&place.path().join("a"), "two");
        let changed = GitState { dirty: Some(true), ..state };
        assert_eq!(GitState::of(place.path()), Some(changed.clone()));
        assert!(changed.to_string().ends_with(", with uncommitted changes"), "{changed}");
    }
}
