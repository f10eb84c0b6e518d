//! Gradient codecs: ratio, error, speed of kernels, and step times over a slow link.
//!
//! The link joins two network namespaces with a token bucket at either end, so it needs root, `ip` and `tc`. `--mbits
//! 0` omits it. Below the break-even bandwidth a codec makes steps shorter. The prediction is the number of saved bytes
//! per second of computing. The measurement interpolates between the rates at which steps are shorter and longer.

mod link;
mod speed;
mod timing;
mod training;

pub(crate) use self::training::as_rank;

use anyhow::Result;
use clap::Args;
use phalanx_sharding::{CodecKind, CodecSettings, CodecWhen};
use serde_json::{Value as Json, json};

use self::link::Link;
use self::speed::Gradients;
use self::training::{Measurements, Order, over};

/// The arguments of a measurement.
#[derive(Debug, Args)]
pub(crate) struct CodecsArgs {
    /// The codecs; all by default
    #[arg(long, value_delimiter = ',')]
    codec: Vec<String>,
    /// The part of gradients that top-k, random-k and DGC send
    #[arg(long, default_value_t = 0.01)]
    density: f64,
    /// The rank of PowerSGD
    #[arg(long, default_value_t = 2)]
    rank: usize,
    /// Numbers that share a scale
    #[arg(long, default_value_t = 256)]
    chunk: usize,
    /// Rates of the link in Mbit/s, slowest first; 0 = no trainings
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000")]
    mbits: Vec<u64>,
    /// Measured steps of each training, after one warm-up step
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Images of a rank and step
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Rounds of each kernel, for the median
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Also write the rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
}

/// Returns the break-even rate of a codec, by linear interpolation of step seconds over seconds a bit. `None` if steps
/// are shorter, or longer, at all rates.
fn crossing(rates: &[u64], plain: &[Measurements], coded: &[Measurements]) -> Option<f64> {
    let gain = |at: usize| plain[at].step - coded[at].step;
    (1..rates.len()).find(|at| gain(at - 1) > 0.0 && gain(*at) <= 0.0).map(|at| {
        let (slow, fast) = (1.0 / rates[at - 1] as f64, 1.0 / rates[at] as f64);
        let part = gain(at - 1) / (gain(at - 1) - gain(at));
        1.0 / (slow + (fast - slow) * part)
    })
}

pub(crate) fn run(args: &CodecsArgs) -> Result<()> {
    let wanted = |kind: CodecKind| args.codec.is_empty() || args.codec.iter().any(|name| name == kind.name());
    args.codec.iter().try_for_each(|name| name.parse::<CodecKind>().map(drop))?;
    let settings = |kind| CodecSettings {
        kind,
        density: args.density,
        rank: args.rank,
        chunk: args.chunk,
        ..Default::default()
    };
    let kinds: Vec<_> =
        CodecKind::ALL.iter().copied().filter(|kind| *kind != CodecKind::None && wanted(*kind)).collect();
    let rows = kernels(args, &kinds, &settings)?;
    let rates: Vec<u64> = args.mbits.iter().copied().filter(|rate| *rate > 0).collect();
    let trainings = if rates.is_empty() { Vec::new() } else { over_links(args, &kinds, &rates, &settings)? };
    crate::write(args.json.as_deref(), &json!({ "codecs": rows, "trainings": trainings }))
}

/// Measures the codecs alone: ratio, error and speed.
fn kernels(
    args: &CodecsArgs,
    kinds: &[CodecKind],
    settings: &dyn Fn(CodecKind) -> CodecSettings,
) -> Result<Vec<Json>> {
    let gradients = Gradients::of_resnet()?;
    println!(
        "gradients of a ResNet-18, {} numbers; ratio among 4 ranks, error of a sum over 2, one thread",
        gradients.len()
    );
    println!("{:>10} {:>8} {:>11} {:>12} {:>12}", "codec", "ratio", "error", "encode GB/s", "decode GB/s");
    let mut rows = Vec::new();
    for kind in kinds {
        let row = gradients.row(&settings(*kind), args.rounds)?;
        let (encode, decode) = (row.encode / 1e9, row.decode / 1e9);
        println!(
            "{:>10} {:>8.2} {:>11.2e} {encode:>12.2} {decode:>12.2}",
            row.kind.name(),
            row.ratio,
            row.error
        );
        rows.push(json!({
            "codec": row.kind.name(), "ratio": row.ratio, "error": row.error,
            "encode_gb_s": encode, "decode_gb_s": decode,
        }));
    }
    Ok(rows)
}

/// Measures trainings over links of these rates in Mbit/s, and the rate at which each codec breaks even.
fn over_links(
    args: &CodecsArgs,
    kinds: &[CodecKind],
    rates: &[u64],
    settings: &dyn Fn(CodecKind) -> CodecSettings,
) -> Result<Vec<Json>> {
    let link = Link::new()?;
    let order = |kind, when| Order { settings: settings(kind), steps: args.steps, batch: args.batch, when };
    let at_rates = |kind| -> Result<Vec<Measurements>> {
        let at = |rate: &u64| {
            link.limit(*rate)?;
            over(&link, &order(kind, CodecWhen::Always))
        };
        rates.iter().map(at).collect()
    };
    println!(
        "\nMobileNetV2, ddp, 2 ranks of 1 thread with {} images: seconds a step over a link of Mbit/s",
        args.batch
    );
    print!("{:>10} {:>10}", "codec", "MB a step");
    rates.iter().for_each(|rate| print!(" {rate:>9}"));
    println!(" {:>21} {:>10}", "break-even: predicted", "measured");
    let plain = at_rates(CodecKind::None)?;
    let mut trainings = Vec::new();
    for kind in std::iter::once(CodecKind::None).chain(kinds.iter().copied()) {
        let seen = if kind == CodecKind::None { plain.clone() } else { at_rates(kind)? };
        // DGC is part of the optimizer; its cost is top-k and momentum.
        let measured = if kind == CodecKind::None {
            None
        } else {
            link.limit(rates[rates.len() - 1])?;
            Some(over(&link, &order(kind, CodecWhen::Auto))?)
        };
        trainings.push(training(kind, rates, (&plain, &seen), measured));
    }
    Ok(trainings)
}

/// Prints and returns the row of a codec. `plain` has the steps without a codec, `seen` the steps with it. `measured`
/// has the saved bytes and the computing time.
fn training(
    kind: CodecKind,
    rates: &[u64],
    (plain, seen): (&[Measurements], &[Measurements]),
    measured: Option<Measurements>,
) -> Json {
    print!("{:>10} {:>10.3}", kind.name(), seen[0].sent / 1e6);
    seen.iter().for_each(|seen| print!(" {:>9.3}", seen.step));
    let predicted = measured.map(|seen| 8e-6 * seen.saved / seen.coding.max(f64::MIN_POSITIVE));
    let found = measured.and_then(|_| crossing(rates, plain, seen));
    if let Some(predicted) = predicted {
        let (first, last) = (rates[0], rates[rates.len() - 1]);
        let beyond =
            if seen[0].step < plain[0].step { format!("above {last}") } else { format!("below {first}") };
        print!(" {predicted:>21.0} {:>10}", found.map_or(beyond, |found| format!("{found:.0}")));
    }
    println!();
    json!({
        "codec": kind.name(), "bytes_sent_per_step": seen[0].sent,
        "seconds_per_step": rates.iter().zip(seen).map(|(rate, seen)| json!({ "mbits": rate, "seconds": seen.step })).collect::<Vec<_>>(),
        "break_even_mbits_predicted": predicted, "break_even_mbits_measured": found,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_lies_where_both_are_as_long() {
        // Without the codec a step sends 8 megabits. With it: 2 megabits, and 0.1 s of computing.
        let seen = |megabits: f64, more: f64| {
            let step =
                |rate: &u64| Measurements { step: megabits / *rate as f64 + more, ..Measurements::default() };
            [10, 100, 1000].iter().map(step).collect::<Vec<_>>()
        };
        let found = crossing(&[10, 100, 1000], &seen(8.0, 0.0), &seen(2.0, 0.1)).expect("they cross");
        assert!((found - 60.0).abs() < 1e-9, "{found}");
        assert!(crossing(&[10, 100, 1000], &seen(8.0, 0.0), &seen(2.0, 0.0)).is_none());
    }
}
