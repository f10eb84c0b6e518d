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
