//! `cargo xtask site`: the pages of `docs/` as a site with search, by mdBook.

use std::path::Path;
use std::process::{Command, ExitCode};

/// The installation of mdBook with the parts that the site needs.
const INSTALL: &str =
    "cargo install mdbook --version ^0.5 --locked --no-default-features --features search,serve";

/// Makes the site in `target/site`. `--serve` shows it in a browser and makes it again when pages change.
pub(crate) fn site(arguments: &[String], root: &Path, target: &Path) -> Result<ExitCode, String> {
    let command = match arguments {
        [] => "build",
        [option] if option == "--serve" => "serve",
        _ => return Err("site takes no arguments but --serve".to_owned()),
    };
    let place = std::path::absolute(target.join("site")).map_err(|error| error.to_string())?;
    let mut mdbook = Command::new("mdbook");
    mdbook.arg(command).arg(root.join("docs")).arg("--dest-dir").arg(&place);
    match mdbook.status() {
        Ok(status) if status.success() => {
            check_links(&place)?;
            println!("{}", place.join("index.html").display());
            Ok(ExitCode::SUCCESS)
        }
        Ok(_) => Ok(ExitCode::FAILURE),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("mdbook is not installed; run `{INSTALL}`"))
        }
        Err(error) => Err(format!("cannot start mdbook: {error}")),
    }
}

/// Refuses a site with links to pages or pictures that it does not have.
fn check_links(site: &Path) -> Result<(), String> {
    let entries =
        std::fs::read_dir(site).map_err(|error| format!("cannot read {}: {error}", site.display()))?;
    let mut broken = Vec::new();
    for page in entries.flatten().map(|entry| entry.path()) {
        if page.extension().is_none_or(|extension| extension != "html") {
            continue;
        }
        let text = std::fs::read_to_string(&page)
            .map_err(|error| format!("cannot read {}: {error}", page.display()))?;
        let missing = links(&text).filter(|link| !site.join(link).exists());
        let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
        broken.extend(missing.map(|link| format!("{name}: {link}")));
    }
    broken.sort();
    broken.dedup();
    match broken.len() {
        0 => Ok(()),
        count => Err(format!("{count} broken links:\n  {}", broken.join("\n  "))),
    }
}

/// Returns the links of a page within the site, without their anchors.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let values = ["href=\"", "src=\""].into_iter().flat_map(|name| text.split(name).skip(1));
    let targets =
        values.filter_map(|rest| rest.split('"').next()).filter_map(|link| link.split(['#', '?']).next());
    targets.filter(|link| !link.is_empty() && !link.contains(':') && !link.starts_with("//"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_within_the_site_are_found() {
        let text =
            r##"<a href="data.html#x">a</a> <img src="a.png"> <a href="#top"> <a href="https://x.y/z">"##;
        assert_eq!(links(text).collect::<Vec<_>>(), ["data.html", "a.png"]);
    }
}
