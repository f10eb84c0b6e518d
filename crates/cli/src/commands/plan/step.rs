//! A step that ran without numbers, as lines of text.

use phalanx_run::format;
use phalanx_trainer::engine::StepOutline;

/// Renders what the ranks compute, keep and send in a step.
pub(super) fn lines(step: &StepOutline) -> Vec<String> {
    let (share, in_stages) = (step.tensor_ranks > 1, step.ranks.len() > step.tensor_ranks);
    let samples = match step.samples {
        1 => "1 sample".to_owned(),
        count => format!("{count} samples"),
    };
    let mut lines = vec![
        String::new(),
        match share {
            _ if in_stages => format!("check      a step of {samples} a rank fits, in all stages"),
            true => format!("check      a step of {samples} a rank fits, on all ranks that share layers"),
            false => format!("check      a step of {samples} a rank fits"),
        },
        String::new(),
    ];
    let mut titles = vec!["  rank", "operations", "activations"];
    if share {
        titles.extend(["messages", "sent to the others"]);
    }
    if in_stages {
        titles.insert(1, "stage");
        titles.push("sent to stages");
    }
    let mut table = vec![titles.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for (rank, of) in step.ranks.iter().enumerate() {
        let mut cells =
            vec![format!("  {rank}"), format::count(of.operations), format::bytes(of.activations)];
        if share {
            cells.push(of.traffic.operations.to_string());
            cells.push(format::bytes(of.traffic.sent(step.tensor_ranks)));
        }
        if in_stages {
            cells.insert(1, (rank / step.tensor_ranks).to_string());
            cells.push(format::bytes(of.to_stages));
        }
        table.push(cells);
    }
    lines.extend(format::columns(&table));
    lines.push(String::new());
    lines.push("Operations: of products, in floating point. Activations: at most at a time, with samples, buffers and".to_owned());
    lines.push("results on their way; kernels and communication need memory of their own.".to_owned());
    lines
}
