//! Errors and speed of each encoder on one thread, for the weights of the tests. With a folder, also writes these weights there
//! (`normal.f32`, `heavy.f32`, `importance.f32`), so that other encoders can be measured with them.

use std::time::Instant;

use octet_quantize::{TYPES, quantize};
use octet_weights::GgmlType;

#[path = "../tests/quantize/weights.rs"]
mod weights;
use weights::COLUMNS;

/// Seconds that this thread has computed, or seconds.
fn seconds(start: Instant) -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let computed = text.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    computed.map_or_else(|| start.elapsed().as_secs_f64(), |ns| ns / 1e9)
}

/// Relative RMSE: of all columns alike, and weighted; and millions of weights a second.
fn measure(ty: GgmlType, x: &[f32], importance: Option<&[f32]>, weights: &[f32]) -> (f64, f64, f64) {
    let mut blocks = vec![0; x.len() / ty.block_len() * ty.block_bytes()];
    let start = Instant::now();
    let (before, mut weights_made) = (seconds(start), 0);
    // The system counts a thread's time in steps of some milliseconds.
    while weights_made == 0 || start.elapsed().as_secs_f64() < 0.4 {
        quantize(ty, x, COLUMNS, importance, &mut blocks);
        weights_made += x.len();
    }
    let speed = weights_made as f64 / (seconds(start) - before) / 1e6;
    let mut y = vec![0.0; x.len()];
    ty.dequantize(&blocks, &mut y);
    let (mut off, mut all, mut weighted, mut all_weighted) = (0.0, 0.0, 0.0, 0.0);
    for (i, (x, y)) in x.iter().zip(&y).enumerate() {
        let w = f64::from(weights[i % COLUMNS]);
        off += f64::from(x - y).powi(2);
        all += f64::from(*x).powi(2);
        weighted += w * f64::from(x - y).powi(2);
        all_weighted += w * f64::from(*x).powi(2);
    }
    ((off / all).sqrt(), (weighted / all_weighted).sqrt(), speed)
}

fn main() -> std::io::Result<()> {
    let (normal, heavy, importance) = (weights::normal(), weights::heavy(), weights::importance());
    if let Some(folder) = std::env::args().nth(1) {
        for (name, values) in [("normal", &normal), ("heavy", &heavy), ("importance", &importance)] {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            std::fs::write(std::path::Path::new(&folder).join(name).with_extension("f32"), bytes)?;
        }
    }
    println!("type     normal   heavy    weighted with importance: heavy weighted  M/s  with importance");
    for &ty in TYPES {
        let n = measure(ty, &normal, None, &importance);
        let h = measure(ty, &heavy, None, &importance);
        let i = measure(ty, &heavy, Some(&importance), &importance);
        println!("{ty:8} {:.5} {:.5} {:.5} {:.5} {:.5} {:.1} {:.1}", n.0, h.0, h.1, i.0, i.1, n.2, i.2);
    }
    Ok(())
}
