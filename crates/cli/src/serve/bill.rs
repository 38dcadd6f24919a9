//! What a served model takes in memory: sized to what is free where the user does not say, and printed before it is loaded.

use octet_compute::batch::PAGE_TOKENS;
use octet_engine::engine::Options;
use octet_engine::models::Limits;
use octet_engine::report::Report;

use crate::units::{binary, parameters};

/// Contexts' worth of KV cache, and bytes of snapshots, that are tried in turn where the user does not say.
const TRIED: [(usize, Option<u64>); 3] = [(4, Some(2 << 30)), (2, Some(1 << 30)), (1, None)];

/// A model's options and what they cost.
pub struct Bill {
    /// What the engine is opened with.
    pub options: Options,
    limits: Limits,
    context: usize,
}

impl Bill {
    /// Fills in what `options` leave open. `free` is `None` where memory is not to be looked at.
    pub fn new(report: &Report, options: &Options, free: Option<u64>) -> anyhow::Result<Self> {
        report.check_kv(options.kv)?;
        let made_for = report.config.context_length;
        let context = options.context_for(made_for);
        let mut bill = None;
        for (contexts, snapshots) in TRIED {
            let options = Options {
                kv_tokens: options.kv_tokens.or(Some(context * contexts.min(options.max_seqs))),
                snapshot_memory: options.snapshot_memory.or(snapshots),
                ..options.clone()
            };
            let limits = options.limits(made_for, report.state_bytes())?;
            let fits = free.is_none_or(|f| report.memory(&limits, options.cpu.exact).total() <= f);
            bill = Some(Self { options, limits, context });
            if fits {
                break;
            }
        }
        bill.ok_or_else(|| anyhow::anyhow!("nothing was tried"))
    }

    /// Fails where it does not fit the memory.
    pub fn check(&self, report: &Report) -> anyhow::Result<()> {
        let smaller = "a smaller --ctx-size, --parallel, --kv-tokens or --cache-ram";
        let load = (self.limits.clone(), self.options.cpu.exact);
        crate::memory::check(report, &[load], self.context, smaller)
    }

    /// The bill, for people.
    pub fn text(&self, name: &str, report: &Report) -> String {
        let m = report.memory(&self.limits, self.options.cpu.exact);
        let slot = report.state_bytes();
        let kv_tokens = (self.limits.pages - 1) * PAGE_TOKENS;
        let at_once = self.limits.slots.min(kv_tokens / self.context.max(1)).max(1);
        let mut out = format!(
            "{name}: {} with {} parameters\n  weights      {:>12}\n  KV cache     {:>12}  {kv_tokens} tokens in {}\n",
            report.config.architecture.name,
            parameters(report.parameters),
            binary(m.weights),
            binary(m.kv),
            self.limits.kv,
        );
        if slot > 0 {
            let of = |n: usize| binary(slot.saturating_mul(n as u64));
            out += &format!(
                "  states       {:>12}  {} sequences, {} each\n  snapshots    {:>12}  {} of them{}\n",
                of(self.limits.slots),
                self.limits.slots,
                binary(slot),
                of(self.limits.snapshots),
                self.limits.snapshots,
                self.options
                    .disk
                    .as_ref()
                    .map_or(String::new(), |d| format!(", and {} on disk", binary(d.bytes))),
            );
        }
        out += &format!(
            "  activations  {:>12}\n  together     {:>12}\n  context of {} tokens; {at_once} such at once, {} answers in all",
            binary(m.activations),
            binary(m.total()),
            self.context,
            self.limits.slots,
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use octet_synth::{Mix, tiny};

    use super::*;

    #[test]
    fn what_the_user_leaves_open_is_sized_to_the_memory() {
        let report = Report::new(&tiny("qwen35moe", Mix::Q4KM).unwrap()).unwrap();
        let options = Options { context: Some(1000), max_seqs: 8, ..Options::default() };
        let bill = |free| Bill::new(&report, &options, free).unwrap();
        let (roomy, tight) = (bill(None), bill(Some(0)));
        assert_eq!(roomy.options.kv_tokens, Some(4000));
        assert_eq!((tight.options.kv_tokens, tight.options.snapshot_memory), (Some(1000), None));
        let text = roomy.text("tiny", &report);
        assert!(text.contains("4032 tokens in f16") && text.contains("4 such at once, 8 answers"), "{text}");
        let own = Options { kv_tokens: Some(2000), snapshot_memory: Some(1), ..options.clone() };
        let own = Bill::new(&report, &own, Some(0)).unwrap().options;
        assert_eq!((own.kv_tokens, own.snapshot_memory), (Some(2000), Some(1)));
    }
}
