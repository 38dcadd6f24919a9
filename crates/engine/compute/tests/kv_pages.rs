//! Pages of keys and values of every type: their sizes, and heads that they cannot hold.

use octet_compute::backend::*;
use octet_compute::batch::PAGE_TOKENS;
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::{Cpu, CpuOptions};
use octet_compute::reference::Reference;

fn refused<B: Backend>(mut be: B, shape: &CacheShape) -> Option<String> {
    let step = StepShape { tokens: 1, outputs: 1, heads: 2, ..StepShape::default() };
    be.cache(shape, step).err().map(|e| e.to_string())
}

#[test]
fn pages_are_blocks_of_their_types() {
    let layer = LayerCache::Kv { kv_heads: 2, k_dim: 32, v_dim: 32, group: PageGroup::All };
    let q8_0 = KvTypes::from(KvType::Q8_0);
    let mixed = KvTypes { keys: KvType::F16, ..q8_0 };
    assert_eq!(layer.page_parts(q8_0), [2 * PAGE_TOKENS * 34; 2]);
    assert_eq!(layer.page_parts(mixed), [2 * PAGE_TOKENS * 64, 2 * PAGE_TOKENS * 34]);
    assert_eq!((q8_0.to_string(), mixed.to_string()), ("q8_0".into(), "f16/q8_0".into()));
}

#[test]
fn heads_of_partial_blocks_are_refused() {
    let q8_0 = KvTypes::from(KvType::Q8_0);
    for (head_dim, kv, what) in [
        (48, q8_0, Some("keys of type q8_0 need heads of a multiple of 32 values, and this model's have 48")),
        (80, KvTypes { keys: KvType::F16, ..q8_0 }, Some("values of type q8_0")),
        (80, KvType::F16.into(), None),
        (96, q8_0, None),
    ] {
        let group = PageGroup::All;
        let layers = vec![LayerCache::Kv { kv_heads: 1, k_dim: head_dim, v_dim: head_dim, group }];
        let shape = CacheShape { layers, pages: 2, windowed: None, slots: 1, guesses: 0, kv };
        let options =
            CpuOptions { threads: Some(1), pin: false, isa: Some(Isa::Portable), ..CpuOptions::default() };
        let cpu = Cpu::new(&options).expect("every machine runs plain code");
        for error in [refused(Reference, &shape), refused(cpu, &shape)] {
            assert_eq!(error.is_some(), what.is_some(), "{kv}, {head_dim}: {error:?}");
            assert!(error.unwrap_or_default().contains(what.unwrap_or_default()));
        }
    }
}
