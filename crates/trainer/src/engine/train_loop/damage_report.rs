//! The damaged images of a run that others have replaced.

use std::collections::BTreeSet;

use phalanx_run::{RunError, write_aside};

use super::run::Run;
use crate::engine::TrainError;
use phalanx_config::OnDamage;

/// The largest number of images that are named on the console.
const MAX_NAMED: usize = 3;

impl Run<'_> {
    /// Collects the damaged images that the ranks have found. Rank 0 counts them, names some, and adds them to the run's list. All ranks
    /// call this together.
    pub(super) fn report_damage(&mut self) -> Result<(), TrainError> {
        if self.env.config.data.on_damage == OnDamage::Error {
            return Ok(());
        }
        let own = self.data.damaged().join("\n");
        let of_ranks = self.distributed.exchange().gather_text(&own)?;
        if !self.is_first() {
            return Ok(());
        }
        let file = self.env.folder.damaged();
        // Those that an earlier attempt has found.
        let earlier = std::fs::read_to_string(&file).unwrap_or_default();
        let all: BTreeSet<&str> = of_ranks
            .iter()
            .chain([&earlier])
            .flat_map(|text| text.lines())
            .filter(|line| !line.is_empty())
            .collect();
        self.reporter.set_last("damaged_images", all.len());
        if all.is_empty() {
            return Ok(());
        }
        let lines: String = all.iter().map(|path| format!("{path}\n")).collect();
        write_aside(&file, lines.as_bytes()).map_err(RunError::io("write", &file))?;
        let mut named: Vec<&str> = all.iter().copied().take(MAX_NAMED).collect();
        named.extend((all.len() > MAX_NAMED).then_some("…"));
        let images = match all.len() {
            1 => "1 damaged image was".to_owned(),
            number => format!("{number} damaged images were"),
        };
        let (named, file) = (named.join(", "), file.display());
        self.reporter.note(format!(
            "warning: {images} replaced by others: {named}; data.exclude = \"{file}\" leaves them out"
        ));
        Ok(())
    }
}
