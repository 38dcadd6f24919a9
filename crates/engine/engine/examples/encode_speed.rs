//! How long a tower takes for an image: `cargo run --release --example encode_speed MMPROJ [WIDTH HEIGHT [TIMES [THREADS]]]`.

use std::sync::Arc;
use std::time::Instant;

use octet_compute::cpu::{Arbiter, CpuOptions};
use octet_engine::vision::{Options, Picture, open};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let (width, height, times) = (number(1, 512)?, number(2, 512)?, number(3, 5)?);
    let file = args.first().ok_or("expected the path of a projector")?;
    let model = Arc::new(octet_weights::Model::open(file.as_ref() as &std::path::Path)?);
    let tower = Options::new(Arc::clone(&model)).tower()?;
    let rgb =
        (0..3 * width * height).map(|i| (i / 3 % width * 3 + i / 3 / width * 5 + i % 3 * 70) as u8).collect();
    let cpu = CpuOptions { threads: Some(number(4, 2)?), ..CpuOptions::default() };
    let mut encoder = open(&model, tower.clone(), &cpu, &Arbiter::default())?;
    let mut taken = Vec::with_capacity(times);
    let image = Arc::new(tower.resize(&Picture { width, height, rgb })?);
    for _ in 0..times {
        let begin = Instant::now();
        let embeddings = encoder.encode(Arc::clone(&image))?;
        taken.push(begin.elapsed().as_secs_f64() * 1e3);
        std::hint::black_box(embeddings);
    }
    taken.sort_by(f64::total_cmp);
    println!(
        "{} tokens: {:.0} ms (median), {:.0} to {:.0}",
        image.len(),
        taken[times / 2],
        taken[0],
        taken[times - 1]
    );
    Ok(())
}
