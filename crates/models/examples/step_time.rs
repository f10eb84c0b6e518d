//! Times a training step (forward, loss, backward) of the models: `step_time [MODEL] [BATCH] [SIZE] [THREADS]`.

use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use phalanx_models::{
    ClipTextConfig, CvaeConfig, MobileNetV2, MobileNetV2Config, ResNet, ResNetConfig, ResNetVariant,
    TextToImage,
};
use phalanx_tensor::loss::{self, Over};
use phalanx_tensor::{BuildOptions, Context, Key, Result, Session, StoreBuilder, Tape, Value};

type Loss = Box<dyn Fn(&Tape) -> Result<Value>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: usize| arguments.get(at).and_then(|a| a.parse().ok()).unwrap_or(default);
    let name = arguments.first().map_or("cvae", String::as_str);
    let (batch, size, threads) = (number(1, 32), number(2, 32), number(3, 1));
    let builder = StoreBuilder::new(BuildOptions::default());
    let images = Value::constant(Tensor::rand(-1.0_f32, 1.0, (batch, 3, size, size), &Device::Cpu)?);
    let labels: Vec<u32> = (0..batch as u32).map(|i| i % 10).collect();
    let run: Loss = match name {
        "resnet18" => {
            let config = ResNetConfig { cifar_stem: true, ..ResNetConfig::new(ResNetVariant::R18, 10) };
            let model = ResNet::new(&builder.root(), &config)?;
            Box::new(move |tape| {
                loss::cross_entropy(tape, &model.forward(tape, &images)?, &labels, 0.0, Over::Batch)
            })
        }
        "mobilenetv2" => {
            let model = MobileNetV2::new(&builder.root(), &MobileNetV2Config::new(10))?;
            Box::new(move |tape| {
                loss::cross_entropy(tape, &model.forward(tape, &images)?, &labels, 0.0, Over::Batch)
            })
        }
        _ => {
            let text = ClipTextConfig { vocab: 2048, context: 32, ..ClipTextConfig::small() };
            let cvae =
                CvaeConfig { image_size: size, widths: vec![32, 64, 96], latent: 16, text_dim: text.embed };
            let model = TextToImage::new(&builder.root(), &text, &cvae, false)?;
            let ids: Vec<u32> = (0..batch)
                .flat_map(|i| (0..20).map(move |t| if t == 19 { 2047 } else { (i * 7 + t) as u32 }))
                .collect();
            let ids = Tensor::from_vec(ids, (batch, 20), &Device::Cpu)?.to_dtype(DType::U32)?;
            Box::new(move |tape| Ok(model.loss(tape, &images, &ids, (0.01, 0.1), Over::Batch)?.total))
        }
    };
    let store = builder.build()?;
    let context = Arc::new(Context::new(threads));
    let mut times = Vec::new();
    for step in 0..12 {
        let start = Instant::now();
        let tape = Tape::recording(Session::training(context.clone(), Key::new(0).step(step)));
        let loss = run(&tape)?;
        store.zero_grads()?;
        tape.backward(&loss)?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!(
        "{name}: {} parameters, batch {batch} at {size}², {threads} threads: {:.1} ms a step, {:.0} images/s",
        store.num_parameters(),
        median * 1e3,
        batch as f64 / median
    );
    Ok(())
}
