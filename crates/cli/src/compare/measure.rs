//! Reads a text with a model, and compares its predictions with a base's.

use std::time::Instant;

use anyhow::ensure;
use octet_engine::score::Scorer;
use octet_quantize::base::{Head, Reader, Writer};

use crate::progress::Bar;

/// One prediction, compared with the base's.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Position in the text, in tokens.
    pub at: usize,
    /// `sum p ln(p / q)`, in nats.
    pub kl: f64,
    /// Negative log-probability of the text's own token: the base's, and the model's.
    pub nll: [f64; 2],
    /// The token that each finds most probable.
    pub top: [u32; 2],
}

/// Calls `f` with the position and the logits of each prediction that counts: those of the second half of each window, as
/// llama-perplexity does it.
pub fn read(
    scorer: &mut Scorer,
    head: &Head,
    bos: Option<u32>,
    name: &str,
    mut f: impl FnMut(usize, &[f32]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    ensure!(
        scorer.vocab() == head.vocab,
        "{name} has {} tokens in its vocabulary, and the base {}",
        scorer.vocab(),
        head.vocab
    );
    let bar = Bar::steps(format!("{name}: tokens"));
    let all = head.tokens.len() as u64;
    let mut done = 0;
    for (w, window) in head.tokens.chunks_exact(head.window).enumerate() {
        let mut window = window.to_vec();
        // A window begins as a text does.
        if let Some(bos) = bos {
            window[0] = bos;
        }
        scorer.begin();
        let mut at = 0;
        for part in window[..head.window - 1].chunks(scorer.at_once()) {
            let vocab = head.vocab;
            let logits = scorer.read(part)?;
            for row in logits.chunks_exact(vocab) {
                if at >= head.first() {
                    f(w * head.window + at, row)?;
                }
                at += 1;
            }
            done += part.len() as u64;
            bar.update(done, all);
        }
    }
    Ok(())
}

/// Writes a base's predictions.
pub fn write(
    scorer: &mut Scorer,
    head: &Head,
    bos: Option<u32>,
    name: &str,
    out: &mut Writer,
) -> anyhow::Result<()> {
    read(scorer, head, bos, name, |_, logits| Ok(out.put(logits)?))
}

/// Compares a model with the base.
pub fn compare(
    scorer: &mut Scorer,
    base: &mut Reader,
    bos: Option<u32>,
    name: &str,
) -> anyhow::Result<Vec<Row>> {
    base.rewind()?;
    let head = base.head.clone();
    let mut p = vec![0.0; head.vocab];
    let mut rows = Vec::new();
    read(scorer, &head, bos, name, |at, logits| {
        base.read(&mut p)?;
        rows.push(row(at, &p, logits, head.tokens[at + 1]));
        Ok(())
    })?;
    Ok(rows)
}

/// Steps before those that are timed.
const WARM_UP: usize = 4;

/// Tokens a second, one token a step as in generation: of the median of `steps` steps at the start of the text. `None` for no steps.
pub fn speed(scorer: &mut Scorer, head: &Head, steps: usize) -> anyhow::Result<Option<f64>> {
    scorer.begin();
    let mut times = Vec::new();
    for (i, token) in head.tokens.iter().take((WARM_UP + steps).min(head.window)).enumerate() {
        let began = Instant::now();
        scorer.read(&[*token])?;
        if i >= WARM_UP {
            times.push(began.elapsed());
        }
    }
    times.sort_unstable();
    Ok(times.get(times.len() / 2).filter(|_| steps > 0).map(|time| 1.0 / time.as_secs_f64().max(1e-9)))
}

/// `p` are the base's log-probabilities.
fn row(at: usize, p: &[f32], logits: &[f32], next: u32) -> Row {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - largest).exp()).sum();
    let log_sum = f64::from(largest) + sum.ln();
    let kl: f64 = p
        .iter()
        .zip(logits)
        .map(|(p, l)| {
            let p = f64::from(*p);
            p.exp() * (p - (f64::from(*l) - log_sum))
        })
        .sum();
    let top =
        |v: &[f32]| v.iter().enumerate().fold(0, |best, (i, x)| if *x > v[best] { i } else { best }) as u32;
    let i = next as usize;
    Row {
        at,
        kl: kl.max(0.0),
        nll: [-f64::from(p[i]), log_sum - f64::from(logits[i])],
        top: [top(p), top(logits)],
    }
}
