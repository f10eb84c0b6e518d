//! `diffusion_schedules.json` and `samplers.json`: noise schedules, noised images, guidance, and the paths of samplers
//! with a toy network in place of a trained one.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_models::diffusion::samplers::{Guidance, Sampler, SamplerConfig, SamplerKind, Spacing, Variance};
use phalanx_models::diffusion::{BetaSchedule, NoiseSchedule, Prediction};
use phalanx_tensor::{Context, Session, Tape, Value, ops};
use serde_json::Value as Json;

use crate::report::numbers;
use crate::{ParityError, Quantity, Reference, fill};

/// Relative tolerances: of schedules and noise levels, and of samples.
const SCHEDULE: f64 = 1e-4;
const SAMPLES: f64 = 2e-4;
/// The absolute tolerance of β that the reference recomputes from ratios in f32.
const RATIOS: f64 = 2e-5;

const DIMS: [usize; 4] = [2, 3, 8, 8];

/// A toy network, and the arrays of a file by formula.
struct Toy<'a> {
    reference: &'a Reference<'a>,
    tape: Tape,
    x0: Value,
}

impl<'a> Toy<'a> {
    fn new(reference: &'a Reference<'a>) -> Result<Self, ParityError> {
        let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
        let x0 = sym(reference, "x0", 1.0)?;
        Ok(Self { reference, tape, x0 })
    }

    /// Computes 0.9·tanh(x) + `known`·x0.
    fn model(&self, x: &Value, known: f64) -> Result<Value, ParityError> {
        let bent = ops::scale(&self.tape, &ops::tanh(&self.tape, x)?, 0.9)?;
        Ok(ops::add(&self.tape, &bent, &ops::scale(&self.tape, &self.x0, known)?)?)
    }
}

fn sym(reference: &Reference<'_>, name: &str, scale: f64) -> Result<Value, ParityError> {
    let values = fill::sym(name, reference.seed, DIMS.iter().product(), scale);
    Ok(Value::constant(Tensor::from_vec(values, &DIMS, &Device::Cpu)?))
}

fn doubles(value: &Value) -> Result<Vec<f64>, ParityError> {
    let values = value.tensor()?.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f64::from).collect())
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

fn schedule(kind: BetaSchedule) -> Result<NoiseSchedule, ParityError> {
    Ok(NoiseSchedule::new(kind, 1000, kind.usual_range())?)
}

/// `diffusion_schedules.json`.
pub(super) fn check_schedules(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let json = reference.json;
    let at: Vec<usize> = numbers(&json["at"]).into_iter().map(|at| at as usize).collect();
    let toy = Toy::new(reference)?;
    let mut quantities = Vec::new();
    for (kind, key) in
        [(BetaSchedule::Linear, "linear_alphas_cumprod"), (BetaSchedule::Cosine, "cosine_alphas_cumprod")]
    {
        quantities.push(alphas(key, &schedule(kind)?, &at, &json[key]));
    }
    let linear = schedule(BetaSchedule::Linear)?;
    quantities.push(noised(&toy, &linear, &json["add_noise"]["t"], &json["add_noise"]["x_t"], "add_noise")?);
    let config = SamplerConfig::new(SamplerKind::Ddim, 50);
    let mut sampler = config.sampler(&linear, Prediction::Epsilon)?;
    let recorded = &json["ddim50_eta0"];
    let walked = walk(&toy, sampler.as_mut(), &mut |x| toy.model(x, 0.1))?;
    quantities.extend(path("ddim50_eta0", &walked, sampler.as_ref(), recorded));
    Ok(quantities)
}

/// `samplers.json`.
pub(super) fn check_samplers(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let json = reference.json;
    let toy = Toy::new(reference)?;
    let mut quantities = Vec::new();
    let schedules = &json["schedules"];
    let at: Vec<usize> = numbers(&schedules["at"]).into_iter().map(|at| at as usize).collect();
    // The reference has no flow among its schedules of betas.
    for kind in BetaSchedule::ALL.iter().filter(|kind| **kind != BetaSchedule::Flow) {
        let plain = schedule(*kind)?;
        for (name, schedule, ratios) in [
            (kind.to_string(), &plain, false),
            (format!("{kind}_zero_terminal_snr"), &plain.zero_terminal_snr(), true),
        ] {
            let recorded = &schedules[name.as_str()];
            let betas: Vec<f64> = at.iter().map(|at| at_step(schedule.betas(), *at)).collect();
            let expected = numbers(&recorded["betas"]);
            let name_of = format!("{name} betas");
            quantities.push(match ratios {
                // All values are at most 1, so this is an absolute error.
                true => Quantity::vector(&name_of, &betas, &expected, RATIOS),
                false => each(&name_of, &betas, &expected),
            });
            quantities.push(alphas(
                &format!("{name} alphas_cumprod"),
                schedule,
                &at,
                &recorded["alphas_cumprod"],
            ));
        }
    }
    let of_noise = &json["add_noise"];
    let scaled = schedule(BetaSchedule::ScaledLinear)?;
    quantities.push(noised(&toy, &scaled, &of_noise["t"], &of_noise["x_t"]["head"], "add_noise")?);
    quantities.push(velocity(&toy, &scaled, of_noise)?);
    quantities.extend(guidance(&toy, &json["guidance"])?);
    for (name, run) in json["runs"].as_object().ok_or_else(|| reference.lacks("runs"))? {
        quantities.extend(check_run(&toy, name, run)?);
    }
    Ok(quantities)
}

/// Returns the value of a schedule at a step. NaN, which equals no reference, for a step outside of it.
fn at_step(values: &[f64], at: usize) -> f64 {
    values.get(at).copied().unwrap_or(f64::NAN)
}

fn each(name: &str, found: &[f64], expected: &[f64]) -> Quantity {
    let pairs: Vec<_> =
        found.iter().zip(expected).enumerate().map(|(at, (f, e))| (format!("[{at}]"), *f, *e)).collect();
    Quantity::each(name, &pairs, 1e-12, SCHEDULE)
}

/// Compares noise levels σ = √((1 − ā)/ā). The reference keeps ā in f32. Near 1, its rounding error of 2⁻²⁴ makes an
/// error of 2⁻²⁴/2σ in the level, which is added to the tolerance.
fn levels(name: &str, found: &[f64], expected: &[f64]) -> Quantity {
    let rounding = (-25_f64).exp2();
    let scaled = |(at, (found, expected)): (usize, (&f64, &f64))| {
        let allowed = expected + rounding / (expected.max(f64::MIN_POSITIVE) * SCHEDULE);
        let off = if *expected == 0.0 { *found } else { (found - expected) / allowed };
        (format!("[{at}]"), 1.0 + off, 1.0)
    };
    let pairs: Vec<_> = found.iter().zip(expected).enumerate().map(scaled).collect();
    match found.len() == expected.len() {
        true => Quantity::each(name, &pairs, 0.0, SCHEDULE),
        false => Quantity::exact(name, &[found.len()], &[expected.len()]),
    }
}

fn alphas(name: &str, schedule: &NoiseSchedule, at: &[usize], expected: &Json) -> Quantity {
    let found: Vec<f64> = at.iter().map(|at| at_step(schedule.alphas_cumprod(), *at)).collect();
    each(name, &found, &numbers(expected))
}

fn timesteps(json: &Json) -> Vec<usize> {
    numbers(json).into_iter().map(|timestep| timestep as usize).collect()
}

fn noised(
    toy: &Toy<'_>,
    schedule: &NoiseSchedule,
    at: &Json,
    expected: &Json,
    name: &str,
) -> Result<Quantity, ParityError> {
    let noise = sym(toy.reference, "eps", 1.7)?;
    let found = doubles(&schedule.add_noise(&toy.tape, &toy.x0, &noise, &timesteps(at))?)?;
    let expected = numbers(expected);
    Ok(Quantity::vector(name, &found[..expected.len().min(found.len())], &expected, SCHEDULE))
}

fn velocity(toy: &Toy<'_>, schedule: &NoiseSchedule, recorded: &Json) -> Result<Quantity, ParityError> {
    let noise = sym(toy.reference, "eps", 1.7)?;
    let found = doubles(&schedule.velocity(&toy.tape, &toy.x0, &noise, &timesteps(&recorded["t"]))?)?;
    let expected = numbers(&recorded["velocity"]["head"]);
    Ok(Quantity::vector("velocity", &found[..expected.len().min(found.len())], &expected, SCHEDULE))
}

fn guidance(toy: &Toy<'_>, recorded: &Json) -> Result<Vec<Quantity>, ParityError> {
    let (without, with) = (sym(toy.reference, "uncond", 1.0)?, sym(toy.reference, "cond", 1.0)?);
    let scale = recorded["scale"].as_f64().ok_or_else(|| toy.reference.lacks("scale"))?;
    let phi = recorded["rescale"]["phi"].as_f64().ok_or_else(|| toy.reference.lacks("phi"))?;
    let mut quantities = Vec::new();
    for (name, rescale, result) in
        [("guidance", 0.0, &recorded["result"]), ("rescaled guidance", phi, &recorded["rescale"]["result"])]
    {
        let found = doubles(&Guidance { scale, rescale }.apply(&toy.tape, &without, &with)?)?;
        let head = numbers(&result["head"]);
        let shown = &found[..head.len().min(found.len())];
        quantities.push(Quantity::vector(name, shown, &head, SCHEDULE));
        let l2 = [result["l2"].as_f64().unwrap_or(f64::NAN)];
        quantities.push(Quantity::vector(&format!("{name}, L2"), &[norm(&found)], &l2, SCHEDULE));
    }
    Ok(quantities)
}

/// The path of a sampler: the norms after each step, and the last sample.
struct SamplerPath {
    norms: Vec<f64>,
    last: Vec<f64>,
}

/// Samples from noise, with the scaled model input of the sampler.
fn walk(
    toy: &Toy<'_>,
    sampler: &mut dyn Sampler,
    model: &mut dyn FnMut(&Value) -> Result<Value, ParityError>,
) -> Result<SamplerPath, ParityError> {
    let (tape, reference) = (&toy.tape, toy.reference);
    let mut x = ops::scale(tape, &sym(reference, "eps", 1.7)?, sampler.init_noise_sigma())?;
    let mut norms = Vec::new();
    for at in 0..sampler.timesteps().len() {
        let output = model(&sampler.scale_model_input(tape, &x, at)?)?;
        let mut noise = || {
            let values = fill::sym(&format!("noise.{at}"), reference.seed, DIMS.iter().product(), 1.7);
            Ok(Value::constant(Tensor::from_vec(values, &DIMS, &Device::Cpu)?))
        };
        x = sampler.step(tape, &x, &output, at, &mut noise)?.sample;
        norms.push(norm(&doubles(&x)?));
    }
    Ok(SamplerPath { norms, last: doubles(&x)? })
}

/// Compares a path with the recorded one.
fn path(name: &str, walked: &SamplerPath, sampler: &dyn Sampler, recorded: &Json) -> Vec<Quantity> {
    // The reference keeps timesteps in f32.
    let found: Vec<f32> = sampler.timesteps().iter().map(|timestep| *timestep as f32).collect();
    let expected: Vec<f32> =
        numbers(&recorded["timesteps"]).into_iter().map(|number| number as f32).collect();
    let mut quantities = Vec::new();
    // For a thousand timesteps the file lists only the first and last.
    if expected.len() == found.len() {
        quantities.push(match expected.iter().all(|timestep| timestep.fract() == 0.0) {
            true => Quantity::exact(&format!("{name} timesteps"), &found, &expected),
            false => {
                let wide =
                    |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>();
                Quantity::vector(&format!("{name} timesteps"), &wide(&found), &wide(&expected), 1e-5)
            }
        });
    }
    let (norms, expected) = match recorded.get("norm_after_each_50th") {
        Some(some) => {
            let norms: Vec<f64> = walked.norms.chunks(50).filter_map(|fifty| fifty.last().copied()).collect();
            (norms, numbers(some))
        }
        None => (walked.norms.clone(), numbers(&recorded["norm_after_each"])),
    };
    let pairs: Vec<_> =
        norms.iter().zip(&expected).enumerate().map(|(at, (f, e))| (format!("[{at}]"), *f, *e)).collect();
    quantities.push(Quantity::exact(&format!("{name} steps"), &[norms.len()], &[expected.len()]));
    quantities.push(Quantity::each(&format!("{name} norms"), &pairs, 1e-12, SAMPLES));
    let last = numbers(&recorded["final"]);
    let shown = &walked.last[..last.len().min(walked.last.len())];
    quantities.push(Quantity::vector(&format!("{name} final"), shown, &last, SAMPLES));
    quantities
}

fn check_run(toy: &Toy<'_>, name: &str, run: &Json) -> Result<Vec<Quantity>, ParityError> {
    let reference = toy.reference;
    let config = &run["config"];
    let text =
        |json: &Json, key: &str| json[key].as_str().map(str::to_owned).ok_or_else(|| reference.lacks(key));
    let flag = |key: &str| config[key].as_bool().unwrap_or(false);
    let kind = match text(run, "scheduler")?.as_str() {
        "dpmsolver" => SamplerKind::DpmSolver,
        other => other.parse()?,
    };
    let betas: BetaSchedule = text(config, "beta_schedule")?.parse()?;
    let mut noise = schedule(betas)?;
    if flag("rescale_betas_zero_snr") {
        noise = noise.zero_terminal_snr();
    }
    let prediction: Prediction = text(config, "prediction_type")?.parse()?;
    let spacing: Spacing = text(config, "timestep_spacing")?.parse()?;
    let steps = run["steps"].as_u64().ok_or_else(|| reference.lacks("steps"))? as usize;
    let settings = SamplerConfig {
        spacing: Some(spacing),
        steps_offset: config["steps_offset"].as_u64().unwrap_or(0) as usize,
        eta: run["eta"].as_f64().unwrap_or(0.0),
        variance: match config["variance_type"].as_str() {
            Some(variance) => variance.parse()?,
            None => Variance::FixedSmall,
        },
        clip: flag("clip_sample").then_some(1.0),
        set_alpha_to_one: config["set_alpha_to_one"].as_bool().unwrap_or(true),
        karras: flag("use_karras_sigmas"),
        ..SamplerConfig::new(kind, steps)
    };
    let mut sampler = settings.sampler(&noise, prediction)?;
    let guidance = run["guidance"].as_f64().map(|scale| Guidance { scale, rescale: 0.0 });
    let walked = walk(toy, sampler.as_mut(), &mut |x| match guidance {
        Some(guidance) => Ok(guidance.apply(&toy.tape, &toy.model(x, 0.0)?, &toy.model(x, 0.1)?)?),
        None => toy.model(x, 0.1),
    })?;
    let mut quantities = path(name, &walked, sampler.as_ref(), run);
    let start = [run["init_noise_sigma"].as_f64().unwrap_or(f64::NAN)];
    quantities.push(Quantity::vector(
        &format!("{name} start"),
        &[sampler.init_noise_sigma()],
        &start,
        SCHEDULE,
    ));
    if run.get("sigmas").is_some() {
        let recorded = numbers(&run["sigmas"]);
        quantities.push(levels(&format!("{name} sigmas"), &sampler.noise_levels(), &recorded));
    }
    let l2 = [run["final_l2"].as_f64().unwrap_or(f64::NAN)];
    quantities.push(Quantity::vector(&format!("{name} final, L2"), &[norm(&walked.last)], &l2, SAMPLES));
    Ok(quantities)
}
