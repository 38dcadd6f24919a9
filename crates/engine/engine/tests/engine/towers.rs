//! Towers of checkpoints that transformers made, and its numbers for two pictures: `fixtures/towers/make.py`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use octet_engine::models::Limits;
use octet_engine::tokenizer::Tokenizer;
use octet_engine::vision::{Clip, Options, Picture, Reader};
use octet_testkit::{Golden, max_abs_diff, shared};
use octet_vulkan::{Vulkan, VulkanOptions};
use octet_weights::Value;

use crate::common::{On, Run, exact_backends, limits};
use crate::vision::{encoder, feed, pixels};

/// The pictures of `make.py`.
const SIZES: [[usize; 2]; 2] = [[50, 34], [21, 45]];

fn picture([width, height]: [usize; 2]) -> Picture {
    let value = |i: usize| {
        let (c, x, y) = (i % 3, i / 3 % width, i / 3 / width);
        (3 * x * x + 5 * x * y + 11 * y + 70 * c + x / 4 * (y / 3) * 17) as u8
    };
    Picture { width, height, rgb: (0..3 * width * height).map(value).collect() }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/towers").join(name)
}

/// The tower of a checkpoint.
fn check(name: &str) {
    let file = octet_weights::hf::open_tower(folder(name)).expect("it opens").expect("it has a tower");
    let device = octet_testkit::vulkan_device().map(On::ExactVulkan);
    check_file(name, file, &backends().chain(device).collect::<Vec<_>>());
}

/// The oracle, and the best instruction set.
fn backends() -> impl Iterator<Item = On> {
    [Some(On::Reference), exact_backends().last().copied()].into_iter().flatten()
}

/// The same tower as llama.cpp's converter writes it.
fn check_projector(name: &str) {
    let file = octet_weights::Model::open(folder(name).join("mmproj.gguf")).expect("it opens");
    check_file(name, file, &backends().collect::<Vec<_>>());
}

/// The projector file that is made of a checkpoint has the tensors of llama.cpp's converter, and Octet reads it like the checkpoint.
/// `tokens` are the names of some of the text's tokens.
fn check_made(name: &str, tokens: &[(usize, &str)]) {
    let tower = || octet_weights::hf::open_tower(folder(name)).expect("it opens").expect("it has a tower");
    let mut text = if tokens.is_empty() {
        tower()
    } else {
        octet_weights::Model::open(folder(name)).expect("a whole checkpoint")
    };
    let mut all = vec![String::new(); 512];
    tokens.iter().for_each(|(id, token)| all[*id] = (*token).into());
    text.metadata.insert("tokenizer.ggml.tokens", Value::Strs(all));
    let made = octet_quantize::projector(tower(), &text).expect("it is made");
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("mmproj.gguf");
    octet_synth::write(&made, &path, false, &mut |_, _| {}).expect("it is written");
    let made = octet_weights::Model::open(&path).expect("it opens");
    let theirs = folder(name).join("mmproj.gguf");
    if theirs.exists() {
        let theirs = octet_weights::Model::open(&theirs).expect("it opens");
        let names = |m: &octet_weights::Model| -> BTreeSet<String> {
            m.tensors().iter().map(|t| t.name.clone()).collect()
        };
        assert_eq!(names(&made), names(&theirs), "{name}: tensors");
        for info in theirs.tensors() {
            let values = |m: &octet_weights::Model| {
                m.tensor(&info.name, &info.shape).expect("the same shape").to_f32()
            };
            assert_eq!(values(&made), values(&theirs), "{name}: {}", info.name);
        }
        for (key, value) in theirs.metadata.iter() {
            assert!(made.metadata.get(key).is_some(), "{name}: {key} is {value:?}");
        }
    }
    check_file(name, made, &backends().collect::<Vec<_>>());
}

/// Compares pixels, states after each block and embeddings.
fn check_file(name: &str, file: octet_weights::Model, backends: &[On]) {
    let golden = Golden::at(&folder(name).join("golden.safetensors"));
    let file = Arc::new(file);
    // llama.cpp's files do not have Gemma's limit.
    let max_tokens = (name == "gemma4_unified").then_some(70);
    let options = Options { max_tokens, ..Options::new(Arc::clone(&file)) };
    let tower = options.checked().expect("a whole tower of a known kind");
    for (i, size) in SIZES.into_iter().enumerate() {
        let want = |key: &str| golden.f32(&format!("{i}.{key}")).expect("numbers");
        let image = Arc::new(tower.resize(&picture(size)).expect("a usable image"));
        let embeds = want("embeds");
        assert_eq!(image.len(), embeds.len() / tower.width(), "{name}: tokens of picture {i}");
        // Our patches in their order.
        let mut order: Vec<usize> = (0..image.patches()).collect();
        // transformers keeps the patches of a token together here, as we do.
        if tower.window.is_none() && !["glm4v", "qwen3vl_merger"].contains(&tower.kind) {
            order.sort_by_key(|i| {
                let [x, y] = tower.place(&image, *i);
                [y, x]
            });
        }
        let hidden = tower.hidden();
        let theirs = want("pixels");
        let worst = max_abs_diff(&pixels(&tower, &image)[..theirs.len()], &theirs);
        assert!(worst <= 0.01 / 127.5, "{name}: pixels of picture {i} differ by {worst}");
        for &on in backends {
            let mut encoder = encoder(&file, tower.clone(), on);
            encoder.start(Arc::clone(&image), 64).expect("there is memory");
            let (layers, states) = (tower.blocks.layers, want("hidden"));
            let each = states.len() / (layers + 1);
            let mut seen = 0;
            let ours = loop {
                if let Some(ours) = encoder.advance().expect("it computes") {
                    break ours;
                }
                let (block, values) = encoder.hidden();
                // Later ones are states within the next block.
                if block == seen {
                    seen += 1;
                    let theirs = &states[block * each..][..each];
                    let values: Vec<f32> =
                        order.iter().flat_map(|i| &values[i * hidden..(i + 1) * hidden]).copied().collect();
                    let worst = max_abs_diff(&values[..each], theirs);
                    assert!(worst <= 2e-4, "{name} on {on:?}: picture {i}, block {block}: off by {worst}");
                }
            };
            assert_eq!(seen, layers + 1, "{name}");
            let worst = max_abs_diff(&ours, &embeds);
            assert!(worst <= 2e-4, "{name} on {on:?}: picture {i}: embeddings differ by {worst}");
            encoder.start(Arc::clone(&image), 1).expect("there is memory");
            let again = loop {
                if let Some(again) = encoder.advance().expect("it computes") {
                    break again;
                }
            };
            assert!(again == ours, "{name} on {on:?}: picture {i} in other pieces");
        }
    }
}

/// The GGUF file that is made of a text model has the values of llama.cpp's converter, and no key of Octet's own.
fn check_made_text(name: &str) {
    let theirs = octet_weights::Model::open(folder(name).join("text.gguf")).expect("it opens");
    let file = octet_weights::Model::open(folder(name)).expect("it opens");
    let made = octet_quantize::make(file, octet_quantize::Options::default(), &mut |_, _| {});
    let made = made.expect("a GGUF file");
    for t in theirs.tensors() {
        let values =
            |m: &octet_weights::Model| m.tensor(&t.name, &t.shape).unwrap_or_else(|e| panic!("{e}")).to_f32();
        assert!(values(&made) == values(&theirs), "{name}: {}", t.name);
    }
    let own: Vec<_> = made.metadata.iter().filter(|(key, _)| key.starts_with("octet.")).collect();
    assert!(own.is_empty(), "{name}: {own:?}");
}

/// The tokenizer of a small model, whose tokens for images have other names.
fn tokenizer(names: &[(usize, &str)]) -> Option<Tokenizer> {
    let model = octet_weights::Model::open(shared("zoo/gguf/ministral3.gguf")?).expect("a small model opens");
    let mut metadata = model.metadata.clone();
    let key = "tokenizer.ggml.tokens";
    let Some(Value::Strs(tokens)) = metadata.get(key) else { panic!("an array of tokens") };
    let mut tokens = tokens.clone();
    names.iter().for_each(|(id, name)| tokens[*id] = (*name).into());
    metadata.insert(key, Value::Strs(tokens));
    Some(Tokenizer::from_metadata(&metadata).expect("a tokenizer"))
}

/// Compares the logits of the last tokens of a prompt with both pictures, of the checkpoint and of a text model in GGUF beside it.
fn check_whole(name: &str, names: &[(usize, &str)]) {
    let folder = folder(name);
    check_text(name, names, &folder);
    let converted = folder.join("text.gguf");
    if converted.exists() {
        check_text(name, names, &converted);
    }
}

fn check_text(name: &str, names: &[(usize, &str)], text: &Path) {
    let folder = folder(name);
    let file = Arc::new(octet_weights::hf::open_tower(&folder).expect("it opens").expect("it has a tower"));
    let text = octet_weights::Model::open(text).expect("it opens");
    let golden = Golden::at(&folder.join("golden.safetensors"));
    let tower = Options::new(Arc::clone(&file)).tower().expect("a known tower");
    let images: Vec<_> =
        SIZES.map(|size| Arc::new(tower.resize(&picture(size)).expect("a usable image"))).into();
    let Some(tokenizer) = tokenizer(names) else { return };
    let reader =
        Reader::new(tower.clone(), &tokenizer, None, 256, [0; 32]).expect("it has tokens for images");
    let ids = golden.ids("ids").expect("a prompt");
    // What a template writes: a token for each image.
    let mut prompt = [&[5, 6][..], &[reader.token], &[7, 8, 9], &[reader.token], &[10, 11, 12]].concat();
    let spread = reader.spread(&prompt, &images);
    assert_eq!(spread, ids, "{name}: the prompt");
    let places = reader.read(&mut prompt, &mut [], &images).expect("two places");
    assert_eq!(prompt.len(), ids.len(), "{name}: tokens of the prompt");
    for on in backends() {
        let mut encoder = encoder(&file, tower.clone(), on);
        let embeddings: Vec<f32> =
            images.iter().flat_map(|i| encoder.encode(Arc::clone(i)).expect("it computes")).collect();
        let mut run = Run::new(crate::common::load(&text, on, Limits { pages: 4, ..limits() }));
        let logits = feed(&mut run, &ids, &places, &embeddings, 0..ids.len());
        let theirs = golden.f32("logits").expect("numbers");
        let worst = max_abs_diff(&logits[logits.len() - theirs.len()..], &theirs);
        assert!(worst <= 3e-4, "{name} on {on:?}: logits differ by {worst}");
    }
}

/// Images of other sizes, in pieces of other sizes, need no kernels but those that are compiled with the tower.
#[test]
fn no_kernel_is_compiled_after_a_tower_is_loaded() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    for name in ["qwen3_vl", "gemma3", "internvl"] {
        let file = octet_weights::hf::open_tower(folder(name)).expect("it opens").expect("it has a tower");
        let tower = octet_engine::vision::tower(&file).expect("a known tower");
        let device = Vulkan::new(&VulkanOptions { index, ..VulkanOptions::default() });
        let device = device.expect("the device opens");
        let late = device.late_kernels();
        let mut encoder = octet_engine::vision::open_on(device, &file, tower).expect("it loads");
        for (size, most) in SIZES.into_iter().chain([[200, 120]]).zip([256, 20, 100]) {
            let image = Arc::new(encoder.tower().resize(&picture(size)).expect("a usable image"));
            encoder.start(image, most).expect("there is memory");
            while encoder.advance().expect("it computes").is_none() {}
        }
        if encoder.tower().video.is_some() {
            let tower = encoder.tower().clone();
            let mut clip = Clip::new(&tower, &[0.0, 1.0], SIZES[0]).expect("a usable video");
            let frames = [0, 1].map(|_| clip.read(&picture(SIZES[0])).expect("a usable frame"));
            let pair = frames.into_iter().flatten().next().expect("a pair of frames");
            encoder.encode(Arc::new(pair)).expect("it computes");
        }
        let late = late.lock().expect("nobody panicked");
        assert!(late.is_empty(), "{name}: {late:?}");
    }
}

#[test]
fn gemma3() {
    check("gemma3");
    check_made("gemma3", &[]);
}

#[test]
fn gemma4_with_bounds() {
    check("gemma4");
    check_made("gemma4", &[]);
}

#[test]
fn mistral3() {
    check("mistral3");
    check_made("mistral3", &[(421, "[IMG_BREAK]")]);
    check_projector("mistral3");
    check_whole("mistral3", &[(420, "[IMG]"), (421, "[IMG_BREAK]"), (419, "[IMG_END]")]);
}

#[test]
fn qwen2_5_vl() {
    check("qwen2_5_vl");
    check_made("qwen2_5_vl", &[]);
    check_projector("qwen2_5_vl");
    check_whole("qwen2_5_vl", &[(420, "<|image_pad|>")]);
}

#[test]
fn qwen3_vl() {
    check("qwen3_vl");
    check_made("qwen3_vl", &[]);
}

#[test]
fn smolvlm() {
    check("smolvlm");
    check_made("smolvlm", &[]);
    check_projector("smolvlm");
    check_whole("smolvlm", &[(420, "<image>"), (421, "<fake_token_around_image>"), (419, "<global-img>")]);
}

#[test]
fn pixtral() {
    check("pixtral");
    check_made("pixtral", &[(421, "[IMG_BREAK]")]);
    check_projector("pixtral");
    check_whole("pixtral", &[(420, "[IMG]"), (421, "[IMG_BREAK]"), (419, "[IMG_END]")]);
}

#[test]
fn internvl() {
    check("internvl");
    check_made("internvl", &[]);
    check_projector("internvl");
    check_whole("internvl", &[(420, "<IMG_CONTEXT>")]);
}

#[test]
fn internvl_with_rms_norms() {
    check("internvl_6b");
    check_made("internvl_6b", &[]);
    check_projector("internvl_6b");
}

#[test]
fn glm4v() {
    check("glm4v");
    check_made("glm4v", &[]);
    check_projector("glm4v");
    check_made_text("glm4v");
    check_whole("glm4v", &[(420, "<|image|>")]);
}

#[test]
fn glm4v_with_experts() {
    check("glm4v_moe");
    check_whole("glm4v_moe", &[(420, "<|image|>")]);
}

#[test]
fn gemma4_without_blocks() {
    check("gemma4_unified");
    check_made("gemma4_unified", &[]);
    check_projector("gemma4_unified");
}
