//! What processors' files of a checkpoint say of images and videos, against transformers: `fixtures/towers/processors.py` made the numbers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use octet_engine::vision::plan::Size;
use octet_engine::vision::{Tower, tower};
use serde_json::{Value, json};

fn towers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/towers")
}

/// The tower of a checkpoint with these processors' files instead of its own, or why it is refused.
fn open(name: &str, files: &Value) -> Result<Tower, String> {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(towers().join(name).join(file), folder.path().join(file)).expect("it is copied");
    }
    for (file, content) in files.as_object().expect("files by their names") {
        std::fs::write(folder.path().join(file), content.to_string()).expect("it is written");
    }
    let model = octet_weights::hf::open_tower(folder.path()).map_err(|e| e.to_string())?;
    tower(&Arc::new(model.expect("it has a tower"))).map_err(|e| e.to_string())
}

/// The limits on the pixels of images and videos.
fn limits(tower: &Tower) -> [[usize; 2]; 2] {
    let Size::Rounded { min, max, .. } = tower.size else { panic!("images of any size") };
    let video = tower.video.expect("it reads videos");
    [[min, max], [video.min, video.max]]
}

#[test]
fn limits_on_pixels_are_those_of_transformers() {
    let text = std::fs::read_to_string(towers().join("processors.json")).expect("the cases");
    let cases: Vec<Value> = serde_json::from_str(&text).expect("cases");
    assert!(cases.len() > 10);
    for case in &cases {
        let tower = open(case["model"].as_str().expect("a name"), &case["files"]).expect("it is read");
        assert_eq!(json!(limits(&tower)), json!([case["image"], case["video"]]), "{case}");
    }
    // Without files those of released models, where transformers has none.
    assert_eq!(limits(&open("qwen3_vl", &json!({})).unwrap()), [[65_536, 16_777_216], [4096, 25_165_824]]);
    assert_eq!(limits(&open("qwen2_5_vl", &json!({})).unwrap()), [[3136, 12_845_056]; 2]);
}

#[test]
fn files_that_contradict_the_tower_are_refused() {
    let (images, videos) = ("preprocessor_config.json", "video_preprocessor_config.json");
    for (files, why) in [
        (
            json!({images: {"patch_size": 14}}),
            "field 'patch_size' is 14, and vision_config.patch_size of config.json is 4",
        ),
        (json!({videos: {"merge_size": 1}}), "field 'merge_size' is 1, and vision_config.spatial_merge_size"),
        (json!({videos: {"temporal_patch_size": 1}}), "field 'temporal_patch_size' is 1"),
        (
            json!({"processor_config.json": {"video_processor": {"patch_size": 8}}}),
            "processor_config.json: field 'video_processor.patch_size' is 8",
        ),
        (
            json!({videos: {"size": {"shortest_edge": 9000, "longest_edge": 5000}}}),
            "field 'size.longest_edge' is 5000, which is below 'shortest_edge', 9000",
        ),
        (
            json!({images: {"min_pixels": 9000, "max_pixels": 5000}}),
            "field 'max_pixels' is 5000, which is below",
        ),
        (
            json!({videos: {"size": {"longest_edge": 4.5}}}),
            "field 'size.longest_edge' is 4.5; expected an unsigned",
        ),
        (json!({videos: {"size": {"shortest_edge": 0, "longest_edge": 0}}}), "video_min_pixels"),
        (
            json!({videos: {"image_mean": [0.4, 0.5, 0.5]}}),
            "field 'image_mean' is [0.4, 0.5, 0.5], and that of images is",
        ),
        (
            json!({videos: {"cap_pixels_per_frame": true}}),
            "field 'cap_pixels_per_frame' is true, which is not supported",
        ),
    ] {
        let why_not = open("qwen3_vl", &files).expect_err("it is refused");
        assert!(why_not.contains(why), "{files}: {why_not}");
    }
    // A tower without videos has no such file.
    assert!(open("glm4v", &json!({videos: {"patch_size": 8}})).is_ok());
}
