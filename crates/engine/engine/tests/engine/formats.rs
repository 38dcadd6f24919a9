//! Quantised checkpoints: logits against transformers in float32 with the weights that their makers' libraries dequantise.

use octet_testkit::{Golden, max_abs_diff};

use crate::common::{On, Run, exact_backends, limits, load};

/// Largest difference, as a share of the largest logit.
const TOLERANCE: f32 = 2e-5;

#[test]
fn logits_of_every_quantised_checkpoint() {
    let Some(root) = octet_testkit::shared("formats") else { return };
    let mut checked = 0;
    let methods: Vec<_> = std::fs::read_dir(&root).unwrap().map(|e| e.unwrap().path()).collect();
    let mut folders: Vec<_> = methods
        .iter()
        .filter(|p| p.is_dir())
        .flat_map(|p| std::fs::read_dir(p).unwrap().map(|e| e.unwrap().path()))
        // Experts of one layer, not a model.
        .filter(|p| p.join("golden.safetensors").exists() && !p.ends_with("gpt-oss-experts"))
        .collect();
    folders.sort();
    for dir in folders {
        let name = dir.strip_prefix(root.parent().unwrap()).unwrap().join("golden.safetensors");
        let golden = Golden::open(name.to_str().unwrap()).unwrap();
        let file = octet_weights::Model::open(&dir).unwrap_or_else(|e| panic!("{e}"));
        let widest = exact_backends().pop().unwrap();
        for on in [On::Reference, widest] {
            let mut run = Run::new(load(&file, on, limits()));
            for p in 0.. {
                let Some(ids) = golden.ids(&format!("p{p}.ids")) else { break };
                let want = golden.f32(&format!("p{p}.logits")).unwrap();
                run.clear();
                let got = run.feed(&ids);
                let worst = max_abs_diff(&got[got.len() - want.len()..], &want);
                let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
                assert!(
                    worst <= TOLERANCE * size,
                    "{}, prompt {p} on {on:?}: {worst} of {size}",
                    dir.display()
                );
                checked += 1;
            }
        }
    }
    assert!(checked >= 2 * 44, "{checked} prompts");
}

/// Checkpoints of each kind as a graphics device holds them, with dense layers and experts, and how far logits may be from transformers' as a
/// share of the largest: 8-bit floats meet f32 activations, integers 8-bit ones.
const ON_A_DEVICE: [(&str, f32); 5] = [
    ("fp8/block-ragged", TOLERANCE),
    ("fp8/moe-fp8-block", TOLERANCE),
    ("compressed-tensors/moe-ct-nvfp4", 0.05),
    ("compressed-tensors/w4a16-g32-asym", 0.05),
    ("compressed-tensors/w8a8-int8", 0.05),
];

#[test]
fn logits_of_packed_checkpoints_on_a_graphics_device() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for (name, bound) in ON_A_DEVICE {
        let Some(dir) = octet_testkit::shared(&format!("formats/{name}")) else { return };
        let golden = Golden::open(&format!("formats/{name}/golden.safetensors")).unwrap();
        let file = octet_weights::Model::open(&dir).unwrap_or_else(|e| panic!("{e}"));
        let mut run = Run::new(load(&file, On::Vulkan(index), limits()));
        let ids = golden.ids("p2.ids").expect("a prompt");
        let want = golden.f32("p2.logits").expect("its logits");
        // many tokens, and one
        let (last, prompt) = ids.split_last().expect("it has tokens");
        let mut got = run.feed(prompt);
        got.extend(run.feed(&[*last]));
        let worst = max_abs_diff(&got[got.len() - want.len()..], &want);
        let size = want.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert!(worst <= bound * size, "{name}: {worst} of {size}");
    }
}
