//! Steps that are submitted before the step before has ended: the device finds their tokens itself. They give the bits of steps whose tokens
//! the host chose, in flat memory, without a message of the validation layers; they leave the states that they start from; and faults are reported.

#[path = "../../compute/tests/support/layers.rs"]
mod layers;

use std::process::Command;
use std::sync::{Arc, Mutex};

use layers::*;
use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_compute::inspect::Inspect;
use octet_compute::picks::{Pick, best};
use octet_vulkan::faults::{Fault, Faults};
use octet_vulkan::{Vulkan, VulkanOptions};
use octet_weights::{GgmlType, Matrix, quant};

/// Sequences of a step. Their states have two slots each.
const ROWS: usize = 2;

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
        let table = Matrix::new(table, VOCAB, hidden, data.into());
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
            glu,
            moe,
            norms,
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
            be.embed(batch, table, TableRow::Id, 1.0, h);
            be.project(n, h, Some(norm), [&*q_in, &*k_in, &*v_in], [&mut *qkv, &mut *k, &mut *v]);
            be.rope_store(batch, attention, 0, cache, qkv, Some((k, v)));
            be.attend(batch, attention, 0, cache, qkv, mixed);
            be.linear(n, mixed, out, Out::Add(h, 1.0));
            let outs = [&mut *qkv, &mut *z, &mut *b, &mut *alpha];
            be.project(n, h, Some(norm), [&*qkv_in, &*z_in, &*b_in, &*alpha_in], outs);
            be.gdn(batch, gdn, 1, cache, &[qkv], z, b, alpha, mixed);
            be.linear(n, mixed, gdn_out, Out::Add(h, 1.0));
            be.glu(n, None, Some(&norms[0]), glu, Out::Add(h, 1.0));
            be.moe(n, None, Some(&norms[1]), moe, 1, counts, Out::Add(h, 1.0));
            be.logits(batch, h, &Head { norm, weight: head, scale: 1.0, softcap: None }, logits);
            be.pick(n, logits);
        })
    }

    fn can_follow(&mut self) -> bool {
        self.m.be.can_follow(&mut self.table, ROWS)
    }

    /// Bytes of a state that is saved.
    fn slot_bytes(&self) -> usize {
        let g = &self.m.gdn;
        4 * ((g.conv_kernel - 1) * g.channels() + g.v_heads * g.k_dim * g.v_dim)
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
        let tokens = rows.iter().map(|row| best(row).expect("picks")).collect();
        (rows, tokens)
    }
}

/// The first token of each sequence.
const FIRST: [u32; ROWS] = [1, 2];

/// One token of each sequence at this position, from the states in these slots to those.
fn batch_of(tokens: &[u32], position: usize, from: usize, to: usize) -> Batch {
    let mut batch = Batch::default();
    for (s, token) in tokens.iter().enumerate() {
        batch.push(&[*token], position, to + s, &pages(s), 1);
        batch.start_from(from + s);
    }
    batch
}

/// One token of each sequence at this position, in place.
fn batch(tokens: &[u32], position: usize) -> Batch {
    batch_of(tokens, position, 0, 0)
}

/// The step at this position, ahead: each one leaves the state that it starts from, so the slots alternate.
fn next(position: usize) -> Batch {
    let to = ROWS * (position % 2);
    batch_of(&[0; ROWS], position, ROWS - to, to)
}

fn device(expert_slots: Option<usize>) -> Option<Vulkan> {
    let index = octet_testkit::vulkan_device()?;
    let options = VulkanOptions { index, expert_slots, ..VulkanOptions::default() };
    Some(Vulkan::new(&options).expect("the device opens"))
}

/// Picks of steps whose tokens the host chooses, and how often each expert was used.
fn one_by_one(chain: &mut Chain, steps: usize) -> (Picked, Counted) {
    let mut tokens = FIRST.to_vec();
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
    assert!(chain.can_follow());
    let (mut all, mut memory) = (Vec::new(), Vec::new());
    chain.submit(&batch(&FIRST, 0), false).expect("it is submitted");
    for i in 0..steps {
        if i + 1 < steps {
            chain.submit(&next(i + 1), true).expect("it is submitted");
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
    }
}

/// Steps whose results nobody wants, because the host chose other tokens: then the states are those before, and only the other steps count.
#[test]
fn a_discarded_step_leaves_no_trace() {
    for slots in [None, Some(3)] {
        let Some(device) = device(slots) else { return };
        let mut chain = Chain::new(device, GgmlType::Q4_K, slots.is_some());
        let other = |i: usize| [(7 * i + 3) as u32 % VOCAB as u32, (5 * i + 1) as u32 % VOCAB as u32];
        let run = |chain: &mut Chain, ahead: bool| {
            chain.m.reset();
            chain.m.counts.clear();
            let mut all = Vec::new();
            for i in 0..20 {
                if ahead {
                    chain.submit(&batch(&other(i), i), false).expect("it is submitted");
                    let next = batch_of(&[0; ROWS], i + 1, 0, ROWS);
                    chain.submit(&next, true).expect("it is submitted");
                    chain.m.be.wait().expect("the step works");
                } else {
                    chain.step(&batch(&other(i), i));
                }
                all.push(chain.picks().0);
                // sometimes the next step does that
                if i % 2 == 0 {
                    chain.m.be.discard().expect("the device is there");
                }
            }
            let mut state = vec![0; chain.slot_bytes()];
            chain.m.be.save_slot(&chain.m.cache, 1, &mut state);
            (all, chain.m.counts.layers().collect::<Vec<_>>(), state)
        };
        assert!(chain.can_follow());
        let want = run(&mut chain, false);
        let got = run(&mut chain, true);
        assert!(got.0 == want.0 && got.2 == want.2);
        assert_eq!(got.1, want.1, "counts of experts");
    }
}

/// States that are saved while a step runs are those before it.
#[test]
fn what_is_saved_beside_a_step_is_what_was_there_before() {
    for has_copy_queue in [false, true] {
        let Some(mut device) = device(None) else { return };
        if has_copy_queue {
            device.use_copy_queue().expect("it has memory");
        }
        saves_beside_a_step(Chain::new(device, GgmlType::Q4_K, false), has_copy_queue);
    }
}

fn saves_beside_a_step(mut chain: Chain, has_copy_queue: bool) {
    assert!(chain.can_follow());
    let mut states = [false, true].map(|ahead| {
        chain.m.reset();
        one_by_one(&mut chain, 5);
        chain.submit(&batch(&FIRST, 5), false).expect("it is submitted");
        if ahead {
            chain.submit(&batch_of(&[0; ROWS], 6, 0, ROWS), true).expect("it is submitted");
        }
        chain.m.be.wait().expect("the step works");
        let mut state = vec![0; chain.slot_bytes()];
        let [submitted, waited] = chain.m.be.submissions();
        assert_eq!(submitted - waited, u64::from(ahead));
        chain.m.be.save_slot(&chain.m.cache, 1, &mut state);
        // It waits for the step that has ended, and not for the one behind it.
        assert_eq!(chain.m.be.copy_follows(), has_copy_queue.then_some(waited));
        if ahead {
            chain.m.be.wait().expect("the step works");
            // as it was saved, so it still is
            let before = state.clone();
            chain.m.be.save_slot(&chain.m.cache, 1, &mut state);
            assert!(state == before);
        }
        state
    });
    let [first, second] = &mut states;
    assert!(first == second && first.iter().any(|b| *b != 0));
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
    let mut chain = Chain::new(device, GgmlType::Q4_1, false);
    assert!(!chain.can_follow());
}

/// The embedding table is copied to the machine's memory once, if that has room.
#[test]
fn a_machine_without_room_for_the_table_runs_no_step_ahead() {
    static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let options = |free_memory| VulkanOptions {
        index,
        free_memory: Some(free_memory),
        notice: Some(|message| NOTICES.lock().expect("no panic").push(message.into())),
        ..VulkanOptions::default()
    };
    let chain = |options| Chain::new(Vulkan::new(&options).expect("the device opens"), GgmlType::Q4_K, false);
    let mut short = chain(options(|| Some(100)));
    assert!(!short.can_follow() && !short.can_follow());
    // Something has to stay free.
    assert!(!chain(options(|| Some(512 << 20))).can_follow());
    assert!(chain(options(|| None)).can_follow() && chain(options(|| Some(1 << 30))).can_follow());
    let notices = NOTICES.lock().expect("no panic");
    assert!(notices.len() == 2 && notices[0].contains("embedding table"), "{notices:?}");
}

/// A row with a logit that is no number has that as its only pick, so nobody needs the row.
#[test]
fn logits_that_are_no_numbers_are_picked() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for (at, value) in [(70, f32::NAN), (6000, f32::INFINITY)] {
        let mut be = Vulkan::new(&VulkanOptions { index, ..VulkanOptions::default() }).expect("it opens");
        let mut logits = vec![0.5; 9000];
        (logits[at], logits[8000]) = (value, f32::NAN);
        let logits = be.vector(&logits).expect("room for logits");
        assert!(be.prepare_picks(1, 9000, &[u32::MAX; 282]).expect("room for picks"));
        be.pick(1, &logits);
        let mut picks = Vec::new();
        assert!(!be.picks(0, &mut picks));
        assert_eq!(picks.len(), 1);
        assert_eq!((picks[0].id, picks[0].logit.to_bits()), (at as u32, value.to_bits()));
    }
}

#[test]
fn faults_of_steps_in_flight_are_reported() {
    use Fault::{Lost, OutOfMemory};
    // when the next step is submitted, when the first one ends, and when the next one is discarded
    for (when, fault) in (0..3).flat_map(|when| [(when, Lost), (when, OutOfMemory)]) {
        let Some(mut device) = device(None) else { return };
        let faults = Arc::new(Faults::default());
        device.inject_faults(faults.clone());
        let mut chain = Chain::new(device, GgmlType::Q4_K, false);
        assert!(chain.can_follow());
        let want = one_by_one(&mut chain, 3);
        chain.m.reset();
        chain.submit(&batch(&FIRST, 0), false).expect("it is submitted");
        if when == 0 {
            faults.inject(fault);
        }
        let second = chain.submit(&batch_of(&[0; ROWS], 1, 0, ROWS), true);
        assert_eq!(second.is_err(), when == 0);
        if when == 1 {
            faults.inject(fault);
        }
        let first = chain.m.be.wait();
        assert_eq!(first.is_err(), when == 1, "a step does not fail for the one behind it");
        if when == 2 {
            faults.inject(fault);
        }
        let discarded = chain.m.be.discard();
        assert_eq!(discarded.is_err(), (when, fault) == (2, Lost), "only a lost device counts");
        let why = [second.err(), first.err(), discarded.err()].into_iter().flatten().next();
        if let Some(why) = why.map(|e| e.to_string()) {
            assert!(why.contains(if fault == Lost { "lost" } else { "memory" }), "{why}");
        }
        let [submitted, waited] = chain.m.be.submissions();
        // Nobody waits a second time for a device that is lost.
        assert_eq!(submitted - waited, u64::from((when, fault) == (1, Lost)), "{when}, {fault:?}");
        assert_eq!(Inspect::is_lost(&chain.m.be), fault == Lost);
        if fault == OutOfMemory {
            if when != 1 {
                // the first step has ended well
                assert!(chain.picks().0 == want.0[0]);
            }
            // the next steps work
            chain.m.reset();
            chain.m.counts.clear();
            assert!(one_by_one(&mut chain, 3) == want);
        }
    }
}

/// A save that fails while a step is in flight: the step is waited for, and leaves no counts.
#[test]
fn faults_of_what_is_saved_beside_a_step_are_reported() {
    use Fault::{Lost, OutOfMemory};
    for (has_copy_queue, fault) in [(false, OutOfMemory), (true, OutOfMemory), (true, Lost)] {
        let Some(mut device) = device(None) else { return };
        if has_copy_queue {
            device.use_copy_queue().expect("it has memory");
        }
        let faults = Arc::new(Faults::default());
        device.inject_faults(faults.clone());
        let mut chain = Chain::new(device, GgmlType::Q4_K, false);
        assert!(chain.can_follow());
        let want = one_by_one(&mut chain, 3);
        chain.m.reset();
        chain.m.counts.clear();
        chain.submit(&batch(&FIRST, 0), false).expect("it is submitted");
        chain.submit(&next(1), true).expect("it is submitted");
        chain.m.be.wait().expect("the step works");
        faults.inject(fault);
        let mut state = vec![0; chain.slot_bytes()];
        chain.m.be.save_slot(&chain.m.cache, 1, &mut state);
        assert!(chain.m.be.has_failed());
        chain.submit(&next(2), true).expect_err("it reports the failure");
        let why = chain.m.be.wait().expect_err("it reports the failure").to_string();
        assert!(why.contains(if fault == Lost { "lost" } else { "memory" }), "{why}");
        assert_eq!(Inspect::is_lost(&chain.m.be), fault == Lost);
        if fault == OutOfMemory {
            let [submitted, waited] = chain.m.be.submissions();
            assert_eq!(submitted, waited, "no step is left");
            chain.picks();
            chain.m.reset();
            chain.m.counts.clear();
            assert!(one_by_one(&mut chain, 3) == want);
            chain.m.be.save_slot(&chain.m.cache, 1, &mut state);
            assert!(!chain.m.be.has_failed());
        }
    }
}

/// Environment of [`a_chain_of_steps`]: the barrier of each step that is left out.
const SKIP: &str = "OCTET_TEST_SKIP_BARRIER";

/// The next test runs this one in child processes. Alone it is one more chain.
#[test]
fn a_chain_of_steps() {
    let Some(device) = device(None) else { return };
    let mut chain = Chain::new(device, GgmlType::Q6_K, false);
    chain.m.be.skip_barrier(std::env::var(SKIP).ok().map(|n| n.parse().expect("a number")));
    chain.m.be.use_copy_queue().expect("it has memory");
    ahead(&mut chain, 6);
    chain.m.be.save_slot(&chain.m.cache, 1, &mut vec![0; chain.slot_bytes()]);
    println!("the chain ends");
}

/// What the validation layers write about a chain.
fn validated(feature: &str, skip: Option<u32>) -> String {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child
        .args(["--exact", "a_chain_of_steps", "--nocapture"])
        .env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
        .env("VK_LAYER_ENABLES", format!("VK_VALIDATION_FEATURE_ENABLE_{feature}_EXT"));
    if let Some(skip) = skip {
        child.env(SKIP, skip.to_string());
    }
    let out = child.output().expect("the chain runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(skip.is_some() || (out.status.success() && text.contains("the chain ends")), "{text}");
    text
}

#[test]
fn validation_finds_nothing_in_a_chain_and_notices_a_missing_barrier() {
    if octet_testkit::vulkan_device().is_none() {
        return;
    }
    let complains =
        |text: &str| ["Validation Error", "VUID-", "SYNC-HAZARD"].iter().any(|m| text.contains(m));
    for feature in ["SYNCHRONIZATION_VALIDATION", "GPU_ASSISTED"] {
        let text = validated(feature, None);
        assert!(!complains(&text), "{text}");
    }
    // The first one comes behind the kernel that reads the rows of the embedding table.
    let text = validated("SYNCHRONIZATION_VALIDATION", Some(1));
    assert!(complains(&text), "{text}");
}

/// Takes minutes: `cargo test -p octet-vulkan --test ahead -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn many_steps_ahead_take_no_more_memory() {
    let Some(device) = device(None) else { return };
    let mut chain = Chain::new(device, GgmlType::Q4_K, false);
    let bytes = |chain: &Chain| (chain.m.be.memory_bytes(), octet_testkit::resident_bytes());
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
