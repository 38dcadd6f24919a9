//! Steps that are submitted before the step before has ended: the device finds their tokens itself. They give the bits of steps whose tokens
//! the host chose, in flat memory, without a message of the validation layers; and faults of a step in flight are reported.

#[path = "../../compute/tests/support/layers.rs"]
mod layers;

use std::process::Command;
use std::sync::Arc;

use layers::*;
use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_compute::picks::Pick;
use octet_vulkan::faults::{Fault, Faults};
use octet_vulkan::{Vulkan, VulkanOptions};
use octet_weights::{GgmlType, Matrix, quant};

/// Sequences of a step.
const ROWS: usize = 3;

/// A model in `device` with an embedding table of this type.
struct Chain {
    m: Layers<Vulkan>,
    table: <Vulkan as Backend>::Embedding,
    bufs: [Buf; 9],
}

type Buf = <Vulkan as Backend>::Buf;
/// Picks of each row of each step.
type Picked = Vec<Vec<Vec<Pick>>>;
/// Tokens of each expert of each layer.
type Counted = Vec<Vec<u64>>;

impl Chain {
    fn new(device: Vulkan, table: GgmlType, expert_slots: bool) -> Self {
        let shape = Shape {
            ty: GgmlType::Q4_K,
            head_dim: 32,
            gdn_dim: 32,
            experts: if expert_slots { 7 } else { 4 },
            ..plain_shape()
        };
        let mut m = layers(device, &shape);
        let hidden = shape.hidden();
        let mut data = vec![0; VOCAB * hidden / table.block_len() * table.block_bytes()];
        quant::random_blocks(table, &mut 5, 0.1, &mut data);
        let table = Matrix { ty: table, rows: VOCAB, cols: hidden, data: data.into() };
        let table = m.be.embedding(&table).expect("room for a table");
        let values = m.gdn.v_heads * shape.gdn_dim;
        let (q, kv) = (shape.kv_heads * shape.group * shape.head_dim, shape.kv_heads * shape.head_dim);
        let lens =
            [hidden, (2 * q).max(m.gdn.channels()), kv, kv, q, values, m.gdn.v_heads, m.gdn.v_heads, VOCAB];
        let mut bufs = lens.map(|len| m.be.buf(ROWS * len).expect("room"));
        // the mixers share their output
        bufs[4] = m.be.buf(ROWS * q.max(values)).expect("room");
        assert!(m.be.prepare_picks(ROWS, VOCAB, &[u32::MAX; 3]).expect("room for picks"));
        Self { m, table, bufs }
    }

    /// Calls `run` with a step's verbs.
    fn with<T>(
        &mut self,
        batch: &Batch,
        run: impl FnOnce(&mut Vulkan, &mut dyn FnMut(&mut Vulkan)) -> T,
    ) -> T {
        let [h, qkv, k, v, mixed, z, b, alpha, logits] = &mut self.bufs;
        let Layers {
            be,
            attention,
            gdn,
            mlp,
            moe,
            norm,
            head,
            counts,
            cache,
            out,
            gdn_out,
            q: q_in,
            k: k_in,
            v: v_in,
            qkv: qkv_in,
            z: z_in,
            b: b_in,
            alpha: alpha_in,
            ..
        } = &mut self.m;
        let (n, table) = (batch.len(), &self.table);
        run(be, &mut |be| {
            be.embed(table, batch.tokens(), h);
            be.norm_linear(n, h, norm, 1e-6, [&*q_in, &*k_in, &*v_in], [&mut *qkv, &mut *k, &mut *v]);
            be.rope_store(batch, attention, 0, cache, qkv, k, v);
            be.attend(batch, attention, 0, cache, qkv, mixed);
            be.linear_add(n, mixed, out, h);
            let outs = [&mut *qkv, &mut *z, &mut *b, &mut *alpha];
            be.norm_linear(n, h, norm, 1e-6, [&*qkv_in, &*z_in, &*b_in, &*alpha_in], outs);
            be.gdn(batch, gdn, 1, cache, qkv, z, b, alpha, mixed);
            be.linear_add(n, mixed, gdn_out, h);
            be.mlp(n, mlp, h);
            be.moe(n, moe, 1, counts, h);
            be.logits(batch, h, norm, 1e-6, head, logits);
            be.pick(n, logits);
        })
    }

    fn step(&mut self, batch: &Batch) {
        self.with(batch, |be, body| be.step(Pass::Trunk, batch, |be| body(be))).expect("the step works");
    }

    fn submit(&mut self, batch: &Batch, follows: bool) -> Result<(), octet_compute::Error> {
        self.with(batch, |be, body| be.submit(batch, follows, |be| body(be)))
    }

    /// What the step picked, and the tokens that the host chooses from that.
    fn picks(&mut self) -> (Vec<Vec<Pick>>, Vec<u32>) {
        self.m.be.count_experts(&self.m.counts);
        let mut rows = vec![Vec::new(); ROWS];
        for (row, out) in rows.iter_mut().enumerate() {
            assert!(self.m.be.picks(row, out), "all logits are numbers");
        }
        let best =
            |row: &Vec<Pick>| row.iter().rev().max_by(|a, b| a.logit.total_cmp(&b.logit)).expect("picks").id;
        let tokens = rows.iter().map(best).collect();
        (rows, tokens)
    }
}

/// One token of each sequence at this position.
fn batch(tokens: &[u32], position: usize) -> Batch {
    let mut batch = Batch::default();
    for (s, token) in tokens.iter().enumerate() {
        batch.push(&[*token], position, s, &pages(s), 1);
    }
    batch
}

fn device(expert_slots: Option<usize>) -> Option<Vulkan> {
    let index = octet_testkit::vulkan_device()?;
    let options = VulkanOptions { index, expert_slots, ..VulkanOptions::default() };
    Some(Vulkan::new(&options).expect("the device opens"))
}

/// Picks of steps whose tokens the host chooses, and how often each expert was used.
fn one_by_one(chain: &mut Chain, steps: usize) -> (Picked, Counted) {
    let mut tokens = vec![1, 2, 3];
    let mut all = Vec::new();
    for i in 0..steps {
        chain.step(&batch(&tokens, i));
        let (picks, next) = chain.picks();
        all.push(picks);
        tokens = next;
    }
    (all, chain.m.counts.layers().collect())
}

/// The same of steps that are submitted ahead, and bytes of the device's memory after each.
fn ahead(chain: &mut Chain, steps: usize) -> (Picked, Counted, Vec<u64>) {
    assert!(chain.m.be.runs_ahead(ROWS));
    let (mut all, mut memory) = (Vec::new(), Vec::new());
    chain.submit(&batch(&[1, 2, 3], 0), false).expect("it is submitted");
    for i in 0..steps {
        if i + 1 < steps {
            chain.submit(&batch(&[0; ROWS], i + 1), true).expect("it is submitted");
        }
        chain.m.be.wait().expect("the step works");
        all.push(chain.picks().0);
        memory.push(chain.m.be.memory_bytes());
    }
    (all, chain.m.counts.layers().collect(), memory)
}

#[test]
fn steps_that_are_submitted_ahead_give_the_bits_of_others() {
    use GgmlType::*;
    for (table, slots) in
        [(F32, None), (F16, None), (BF16, None), (Q8_0, Some(3)), (Q4_K, None), (Q5_K, None), (Q6_K, Some(2))]
    {
        let Some(device) = device(slots) else { return };
        let mut chain = Chain::new(device, table, slots.is_some());
        let (want, counts) = one_by_one(&mut chain, 80);
        chain.m.reset();
        chain.m.counts.clear();
        let (got, counted, memory) = ahead(&mut chain, 80);
        assert!(got == want, "{table:?}: first at {:?}", got.iter().zip(&want).position(|(a, b)| a != b));
        assert_eq!(counted, counts, "{table:?}");
        assert_eq!(memory[10], memory[79], "{table:?}: bytes on the device");
        // steps of both kinds in turn, and one whose results nobody wants
        chain.m.reset();
        chain.submit(&batch(&[1, 2, 3], 0), false).expect("it is submitted");
        chain.submit(&batch(&[0; ROWS], 1), true).expect("it is submitted");
        chain.m.reset();
        assert!(one_by_one(&mut chain, 5).0 == want[..5], "{table:?}");
    }
}

#[test]
fn a_step_ahead_has_no_more_barriers_than_others() {
    let Some(device) = device(None) else { return };
    let mut chain = Chain::new(device, GgmlType::Q4_K, false);
    one_by_one(&mut chain, 2);
    let plain = chain.m.be.last_step();
    ahead(&mut chain, 3);
    let (barriers, kernels) = chain.m.be.last_step();
    // instead of a copy
    assert_eq!((barriers, kernels), (plain.0, plain.1 + 1));
}

#[test]
fn a_table_that_kernels_cannot_read_runs_no_step_ahead() {
    let Some(device) = device(None) else { return };
    let chain = Chain::new(device, GgmlType::Q4_1, false);
    assert!(!chain.m.be.runs_ahead(ROWS));
}

#[test]
fn faults_of_steps_in_flight_are_reported() {
    // when the next step is submitted, and when the first one ends
    for (submits, fault) in
        [(true, Fault::Lost), (false, Fault::Lost), (true, Fault::OutOfMemory), (false, Fault::OutOfMemory)]
    {
        let Some(mut device) = device(None) else { return };
        let faults = Arc::new(Faults::default());
        device.inject_faults(faults.clone());
        let mut chain = Chain::new(device, GgmlType::Q4_K, false);
        let want = one_by_one(&mut chain, 3).0;
        chain.m.reset();
        chain.submit(&batch(&[1, 2, 3], 0), false).expect("it is submitted");
        let failed = match submits {
            true => {
                faults.inject(fault);
                chain.submit(&batch(&[0; ROWS], 1), true)
            }
            false => {
                chain.submit(&batch(&[0; ROWS], 1), true).expect("it is submitted");
                faults.inject(fault);
                chain.m.be.wait()
            }
        };
        let why = failed.expect_err("the device failed").to_string();
        assert!(why.contains(if fault == Fault::Lost { "lost" } else { "memory" }), "{why}");
        if fault == Fault::OutOfMemory {
            // the next steps work
            chain.m.reset();
            assert!(one_by_one(&mut chain, 3).0 == want);
        }
    }
}

/// The next test runs this one in a child process. Alone it is one more chain.
#[test]
fn a_chain_of_steps() {
    let Some(device) = device(None) else { return };
    ahead(&mut Chain::new(device, GgmlType::Q6_K, false), 6);
    println!("the chain ends");
}

#[test]
fn validation_finds_nothing_in_a_chain() {
    if octet_testkit::vulkan_device().is_none() {
        return;
    }
    for layers in ["SYNCHRONIZATION_VALIDATION", "GPU_ASSISTED"] {
        let out = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "a_chain_of_steps", "--nocapture"])
            .env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
            .env("VK_LAYER_ENABLES", format!("VK_VALIDATION_FEATURE_ENABLE_{layers}_EXT"))
            .output()
            .expect("the chain runs");
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && text.contains("the chain ends"), "{text}");
        assert!(!["Validation Error", "VUID-", "SYNC-HAZARD"].iter().any(|m| text.contains(m)), "{text}");
    }
}

/// Bytes of this process in memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux system");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("the process has memory");
    1024 * line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number")
}

/// Takes minutes: `cargo test -p octet-vulkan --test ahead -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn many_steps_ahead_take_no_more_memory() {
    let Some(device) = device(None) else { return };
    let mut chain = Chain::new(device, GgmlType::Q4_K, false);
    let bytes = |chain: &Chain| (chain.m.be.memory_bytes(), resident_bytes());
    let want = ahead(&mut chain, 100).0;
    let mut before = (0, 0);
    for round in 0..100 {
        chain.m.reset();
        assert!(ahead(&mut chain, 100).0 == want, "round {round}");
        if round == 10 {
            before = bytes(&chain);
        }
    }
    let after = bytes(&chain);
    println!("after 1,100 and 10,000 steps: {before:?}, {after:?} bytes on the device and of the process");
    assert_eq!(before.0, after.0);
    assert!(after.1 < before.1 + (4 << 20), "{before:?} and then {after:?}");
}
