//! `octet show`, `synth` and `bench` on tiny models.

use crate::common::{Place, str};
use serde_json::Value;

/// Flags that keep a bench short.
const SHORT: &[&str] = &["-p", "8", "-n", "4", "-r", "2", "-t", "1", "--no-bandwidth"];

fn bench(place: &Place, more: &[&str]) -> crate::common::Ran {
    place.octet(&[&["bench", "model.gguf"], SHORT, more].concat()).ok()
}

#[test]
fn show_prints_the_parts_of_a_model() {
    let place = Place::with_model("qwen35moe", "q4_k_m");
    let text = place.octet(&["show", "model.gguf", "-c", "1000"]).ok().stdout;
    for word in ["qwen35moe", "3 Gated DeltaNet, 1 attention", "routed experts", "memory for a context of"] {
        assert!(text.contains(word), "no '{word}' in {text}");
    }
    let json: Value =
        serde_json::from_str(&place.octet(&["show", "-m", "model.gguf", "--json"]).ok().stdout).unwrap();
    assert_eq!(json["architecture"], "qwen35moe");
    assert_eq!(json["experts"]["per_token"], 3);
    assert!(json["active_parameters"].as_u64() < json["parameters"].as_u64());
    let groups: u64 = json["groups"].as_array().unwrap().iter().map(|g| g["bytes"].as_u64().unwrap()).sum();
    assert_eq!(json["bytes"], groups);
}

#[test]
fn keys_and_values_take_the_memory_of_their_types() {
    let place = Place::with_model("qwen3", "f32");
    let kv = |args: &[&str]| {
        let ran = place.octet(&[&["show", "model.gguf", "--json"], args].concat()).ok();
        serde_json::from_str::<Value>(&ran.stdout).unwrap()["memory"]["kv_cache"].as_u64().unwrap()
    };
    assert_eq!(kv(&["-ctk", "f32", "-ctv", "f32"]), 2 * kv(&[]));
    assert_eq!(kv(&["--kv-cache-dtype", "f32"]), 2 * kv(&["--kv-cache-dtype=auto"]));
    // 34 bytes for 32 values; each flag alone
    let f16 = kv(&[]);
    assert_eq!(kv(&["--kv-cache-dtype", "q8_0"]), f16 / 64 * 34);
    assert_eq!(kv(&["-ctk", "q8_0", "-ctv", "q8_0"]), f16 / 64 * 34);
    assert_eq!(kv(&["-ctk", "q8_0"]), f16 / 128 * (34 + 64));
    assert_eq!(kv(&["-ctk", "f32", "-ctv=q8_0"]), f16 / 128 * (128 + 34));
    place.octet(&["show", "model.gguf", "-ctk", "q4_0"]).fails(2, &["q4_0", "f16", "q8_0"]);
    let text = place.octet(&["show", "model.gguf", "-ctv", "q8_0"]).ok().stdout;
    assert!(text.contains("per position in f16/q8_0"), "{text}");
    let ran = bench(&place, &["-o", "jsonl", "-ctk", "q8_0"]).stdout;
    let row: Value = serde_json::from_str(ran.lines().next().unwrap()).unwrap();
    assert_eq!((&row["type_k"], &row["type_v"]), (&"q8_0".into(), &"f16".into()));
}

#[test]
fn guesses_have_a_line_in_the_bill_and_change_no_answer() {
    let place = Place::with_model("qwen35moe", "q4_k_m");
    let text = place.octet(&["show", "model.gguf"]).ok().stdout;
    assert!(text.contains("(0 with --speculative off"), "{text}");
    let json: Value =
        serde_json::from_str(&place.octet(&["show", "model.gguf", "--json"]).ok().stdout).unwrap();
    let block =
        json["groups"].as_array().unwrap().iter().find(|g| g["name"] == "multi-token prediction").unwrap();
    assert!(json["memory"]["speculation"].as_u64() > block["bytes"].as_u64(), "{json:#}");

    // llama-server's and vLLM's flags
    let run = |flags: &[&str]| {
        let text = ["run", "model.gguf", "--raw", "t1 t2 t3 t1 t2 t3 t1 t2", "-n", "24", "--temp", "0"];
        place.octet(&[&text[..], flags].concat())
    };
    let want = run(&["--speculative", "off"]).ok().stdout;
    let vllm = r#"{"method": "mtp", "num_speculative_tokens": 3}"#;
    for flags in [
        &["--spec-type", "draft-mtp", "--spec-draft-n-max", "2", "--spec-draft-p-min", "0.75"][..],
        &["--spec-type", "draft-mtp,ngram-map-k4v", "--draft-max", "64"],
        &["--spec-type", "ngram-mod", "--draft-min", "1"],
        &["-md", "model.gguf", "--draft", "4"],
        &["--spec-type", "draft-simple", "--spec-draft-model", "model.gguf"],
        &["--speculative-config", vllm],
        &[],
    ] {
        assert_eq!(run(flags).ok().stdout, want, "{flags:?}");
    }
    run(&["--spec-type", "draft-simple"]).fails(2, &["--model-draft"]);
    run(&["--spec-type", "mtp", "-md", "model.gguf"]).fails(2, &["exclude each other"]);

    place.octet(&["synth", "tiny-llama", "--mtp", "-o", "no.gguf"]).fails(1, &["no block for multi-token"]);
    let oracle =
        ["--mtp", "--speculative", "mtp", "--draft-oracle", "0.8", "-p", "24", "-n", "24", "-r", "1"];
    let ran = place.octet(&[&["bench", "--synthetic", "tiny-qwen35moe"], &oracle[..]].concat()).ok().stdout;
    assert!(ran.contains("steps by their tokens, ms: 1: ") && ran.contains("; a draft "), "{ran}");
}

#[test]
fn bench_prints_the_table_and_what_a_token_reads() {
    let place = Place::with_model("qwen3moe", "q8_0");
    let ran = place.octet(&[
        "bench",
        "model.gguf",
        "-p",
        "8,16",
        "-n",
        "4",
        "-d",
        "0,8",
        "-r",
        "2",
        "-t",
        "1",
        "--profile",
    ]);
    let text = ran.ok().stdout;
    let rows: Vec<&str> = text.lines().filter(|l| l.starts_with('|')).collect();
    let columns = |row: &str| row.split('|').map(|c| c.trim().to_string()).collect::<Vec<_>>();
    assert_eq!(columns(rows[0])[1..8], ["model", "size", "params", "backend", "threads", "test", "t/s"]);
    let tests: Vec<String> = rows[2..].iter().map(|r| columns(r)[6].clone()).collect();
    assert_eq!(tests, ["pp8", "pp16", "tg4", "pp8 @ d8", "pp16 @ d8", "tg4 @ d8"]);
    assert!(
        rows.iter().all(|r| r.chars().count() == rows[0].chars().count()),
        "columns are not aligned: {text}"
    );
    for word in [
        "weights read per token:",
        "of the memory bandwidth measured alternately",
        "logits of tg4 @ d8: ",
        "project",
        "GB/s",
    ] {
        assert!(text.contains(word), "no '{word}' in {text}");
    }
}

#[test]
fn bench_speaks_json_jsonl_and_csv() {
    let place = Place::with_model("llama", "q4_k_m");
    let json: Value = serde_json::from_str(&bench(&place, &["-o", "json"]).stdout).unwrap();
    let rows = json.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0]["n_prompt"], &rows[0]["n_gen"]), (&8.into(), &0.into()));
    assert_eq!((&rows[1]["n_prompt"], &rows[1]["n_gen"]), (&0.into(), &4.into()));
    assert_eq!(rows[1]["samples_ns"].as_array().unwrap().len(), 2);
    assert!(
        rows[1]["avg_ts"].as_f64().unwrap() > 0.0 && rows[1]["weight_bytes_per_token"].as_u64().unwrap() > 0
    );
    assert!(rows[1]["profile"]["verbs"]["logits"]["calls"].as_u64().unwrap() >= 8);

    let lines = bench(&place, &["-o", "jsonl"]).stdout;
    let hashes: Vec<Value> =
        lines.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["logits_hash"].clone()).collect();
    assert_eq!(
        hashes,
        [rows[0]["logits_hash"].clone(), rows[1]["logits_hash"].clone()],
        "the same in every run"
    );

    let csv = bench(&place, &["-o", "csv"]).stdout;
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3);
    let head = cells(lines[0]);
    assert!(lines.iter().all(|l| cells(l).len() == head.len()), "{csv}");
    let cell = |name: &str| cells(lines[2])[head.iter().position(|h| h == name).unwrap()].clone();
    assert_eq!([cell("test"), cell("n_gen"), cell("model_filename")], ["tg4", "4", "model.gguf"]);
}

/// The cells of a CSV line; commas within quotes are text.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            c => cells.last_mut().unwrap().push(c),
        }
    }
    cells
}

#[test]
fn synth_writes_the_model_that_bench_makes() {
    let place = Place::new();
    let ran = place.octet(&["synth", "tiny-qwen35moe", "--quant", "q4_k_m", "-o", "made.gguf"]).ok();
    assert!(ran.stdout.starts_with("made.gguf: ") && ran.stderr.is_empty());
    place.octet(&["synth", "tiny-qwen35moe", "-o", "made.gguf"]).fails(1, &["made.gguf", "exists already"]);
    place.octet(&["synth", "tiny-qwen35moe", "-o", "made.gguf", "--force"]).ok();

    let hashes = |model: &[&str]| -> Vec<Value> {
        let ran = place.octet(&[&["bench"], model, SHORT, &["-o", "jsonl"]].concat()).ok();
        assert_eq!(ran.stderr, "", "no progress where standard error is no terminal");
        ran.stdout.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["logits_hash"].clone()).collect()
    };
    assert_eq!(hashes(&["made.gguf"]), hashes(&["--synthetic", "tiny-qwen35moe", "--quant", "q4_k_m"]));
}

#[test]
fn thread_counts_make_rows() {
    let place = Place::with_model("qwen2", "q8_0");
    let ran = place.octet(&[
        "bench",
        "model.gguf",
        "-p",
        "0",
        "-n",
        "2",
        "-r",
        "1",
        "-t",
        "1,2",
        "--no-bandwidth",
        "--no-warmup",
        "--no-pin",
        "--isa",
        "portable",
    ]);
    let text = ran.ok().stdout;
    assert!(text.contains("tg2, 1 thread:") && text.contains("tg2, 2 threads"), "{text}");
    assert!(text.contains("portable"), "{text}");
}

#[test]
fn a_bench_of_nothing_is_refused() {
    let place = Place::with_model("qwen2", "f32");
    place.octet(&["bench", "model.gguf", "-p", "0", "-n", "0"]).fails(2, &["nothing to measure"]);
    place.octet(&["bench", "--synthetic", "qwen9"]).fails(2, &["qwen9", "qwen3.6-35b-a3b"]);
    place.octet(&["bench", "--synthetic", "qwen3-8b", "--quant", "q9"]).fails(2, &["q9", "q4_k_m"]);
    place.octet(&["bench", "model.gguf", "--synthetic", "qwen3-8b"]).fails(2, &["cannot be used with"]);
}

#[test]
fn a_model_larger_than_the_memory_is_not_loaded() {
    let place = Place::new();
    let ran =
        place.octet(&["bench", "--synthetic", "qwen3.5-397b-a17b", "--quant", "f32", "-p", "0", "-n", "1"]);
    let ran = ran.fails(1, &["does not fit", "are free", "smaller -p, -n or -d", "--no-memory-check"]);
    assert!(!ran.stderr.contains("--ctx-size"), "bench has no such flag: {}", ran.stderr);
}

#[test]
fn a_name_from_a_file_is_a_cell_of_the_table() {
    let place = Place::new();
    let mut model = octet_synth::tiny("llama", "q8_0".parse().unwrap()).unwrap();
    model.metadata.insert("general.name", octet_weights::Value::Str("a|b \u{1b}[2J\n| c".into()));
    octet_synth::write(&model, &place.path("model.gguf"), false, &mut |_, _| {}).unwrap();
    let text = bench(&place, &[]).stdout;
    assert!(text.contains("| a\\|b \\u{1b}[2J\\n\\| c "), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn a_model_is_written_to_a_file() {
    let place = Place::new();
    let synth = |output: &str| place.octet(&["synth", "tiny-llama", "-o", output, "--force"]);
    synth("-").fails(2, &["standard output"]);
    std::fs::create_dir(place.path("folder")).unwrap();
    synth("folder").fails(1, &["folder", "only be written to a file"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let _listener = std::os::unix::net::UnixListener::bind(place.path("socket")).unwrap();
        synth("socket").fails(1, &["socket is a socket"]);
        assert!(std::fs::symlink_metadata(place.path("socket")).unwrap().file_type().is_socket());
    }
}

/// The number of checks, if all of them are right.
fn checks(doctor: &str) -> usize {
    let (counts, _) = doctor.split_once(" checks are right").expect("a line about the checks");
    let counts: Vec<&str> = counts.lines().last().unwrap().split_whitespace().collect();
    let [right, "of", all] = counts[..] else { panic!("{doctor}") };
    assert_eq!(right, all, "{doctor}");
    all.parse().expect("a number")
}

#[test]
fn doctor_checks_the_processor() {
    let place = Place::new();
    let text = place.octet(&["doctor", "--device", "cpu", "--no-bandwidth"]).ok().stdout;
    assert!(checks(&text) >= 24, "{text}");
    let json = place.octet(&["doctor", "--device", "cpu", "--no-bandwidth", "--json"]).ok().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["device"], &json[0]["passed"]), (&"cpu".into(), &true.into()));
    assert!(json[0]["checks"].as_array().unwrap().iter().any(|c| c["name"] == "moe"));
    place.octet(&["doctor", "--device", "vulkan:99"]).fails(1, &["vulkan"]);
}

/// The effect of a graphics device on each command.
#[test]
fn a_graphics_device_by_its_name() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let device = format!("vulkan:{index}");
    let place = Place::with_model("qwen35moe", "q4_k_m");
    let doctor = place.octet(&["doctor", "--device", &device]).ok().stdout;
    assert!(checks(&doctor) >= 46 && doctor.contains("GB/s"), "{doctor}");
    let kernels = std::fs::read_dir(place.path(".cache/octet/kernels")).unwrap();
    assert_eq!(kernels.count(), 1, "the self-test saves the kernels that it compiles");
    // a driver that gets one kernel wrong
    let wrong = place.octet(&["doctor", "--device", &device, "--no-bandwidth", "--break-kernel", "gdn"]);
    assert!(wrong.stdout.contains("gdn: wrong"), "{}", wrong.stdout);
    wrong.fails(1, &[&device, "wrong results"]);

    let run = |device: &str| {
        let args = ["run", "model.gguf", "--raw", "t1 t2", "-n", "8", "--temp", "0", "--device", device];
        place.octet(&args).ok()
    };
    let (own, card) = (run("cpu"), run(&device));
    assert!(card.stderr.contains(&format!("on {device} (")), "{}", card.stderr);
    assert_eq!(own.stdout, card.stdout, "greedy text");
    assert_eq!(
        (run("auto").stderr, own.stderr),
        (String::new(), String::new()),
        "a device in software is never chosen"
    );

    let both = format!("cpu,{device}");
    let show = place.octet(&["show", "model.gguf", "--device", &both]).ok().stdout;
    assert!(show.contains(&format!("{device} (")) && show.contains("fits"), "{show}");
    let json = place.octet(&["show", "model.gguf", "--device", &both, "--json"]).ok().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["devices"][1]["name"], *device);

    let rows = bench(&place, &["-o", "jsonl", "--device", &both]).stdout;
    let rows: Vec<Value> = rows.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let backends: Vec<&Value> = rows.iter().map(|r| &r["backends"]).collect();
    assert_eq!(backends, ["CPU", "CPU", "Vulkan", "Vulkan"]);
    assert!(rows[0]["barriers_per_step"].is_null() && rows[3]["barriers_per_step"].as_u64().unwrap() > 10);
}

/// One model over several devices, which are one device in software that is opened several times.
#[test]
fn several_devices_run_one_model() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let (one, both) = (format!("vulkan:{index}"), format!("vulkan:{index},vulkan:{index}"));
    let place = Place::with_model("qwen35moe", "q4_k_m");
    let run = |device: &str, more: &[&str]| {
        let args = ["run", "model.gguf", "--raw", "t1 t2", "-n", "8", "--temp", "0", "--device", device];
        place.octet(&[&args[..], more].concat())
    };
    let (alone, together) = (run(&one, &[]).ok(), run(&both, &["--tensor-split", "3,1"]).ok());
    assert_eq!(alone.stdout, together.stdout, "the same text");
    let names = format!("{one} (");
    let start = together.stderr.lines().last().unwrap_or_default();
    assert_eq!(start.matches(&names).count(), 2, "{}", together.stderr);

    // options that do not fit together
    run(&both, &["--tensor-split", "3,1,1"]).fails(1, &["3 proportions", "2 devices"]);
    run(&one, &["--tensor-split", "3,1"]).fails(1, &["--tensor-split", "several devices"]);
    run(&both, &["--tensor-split", "0,1"]).fails(2, &["above 0"]);
    run(&both, &["--tensor-split=-1,1"]).fails(2, &["above 0"]);
    run(&format!("{one},cpu"), &[]).fails(2, &["'cpu'", "together"]);
    run(&format!("{one},vulkan:99"), &[]).fails(1, &["vulkan:99"]);
    run(&both, &["--gpu-memory", "0.01"]).fails(1, &["does not fit", ": layer", "experts in slots"]);
    run(&both, &["--speculative", "draft=model.gguf"]).fails(1, &["a draft model needs one device"]);

    // what `show` prints of each is enough, and what it uses
    let show = |more: &[&str]| -> Value {
        let args = ["show", "model.gguf", "--json", "-c", "50000", "--device"];
        let text = place.octet(&[&args[..], more].concat()).ok().stdout;
        serde_json::from_str::<Value>(&text).unwrap()["devices"].clone()
    };
    let parts = show(&[&both])[0]["parts"].clone();
    let layers = |parts: &Value, i: usize| parts[i]["layers"].as_u64().unwrap();
    assert_eq!(layers(&parts, 0) + layers(&parts, 1), 4, "{parts}");
    let largest = parts.as_array().unwrap().iter().map(|p| p["bytes"].as_u64().unwrap()).max().unwrap();
    // Both share the limit of their device.
    let gpu_memory = format!("{:.9}", (2 * (largest + 1000)) as f64 / f64::from(1 << 30));
    let enough = run(&both, &["-c", "50000", "--gpu-memory", &gpu_memory]).ok();
    assert_eq!(enough.stdout, alone.stdout);
    assert!(enough.stderr.contains("context of 50000 tokens"), "{}", enough.stderr);
    let split = show(&[&both, "--tensor-split", "3,1"])[0]["parts"].clone();
    assert_eq!([layers(&split, 0), layers(&split, 1)], [3, 1]);
    let compared = show(&[&format!("cpu,{one}+{one}")]);
    assert_eq!((&compared[0]["name"], &compared[1]["parts"]), (&"cpu".into(), &parts));
    let text = place.octet(&["show", "model.gguf", "--device", &both]).ok().stdout;
    assert!(text.contains(": layers ") && text.contains("fits"), "{text}");

    let rows = bench(&place, &["-o", "jsonl", "--device", &format!("{one}+{one}")]).stdout;
    let row: Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    assert_eq!(row["device"].as_str().unwrap().matches(&names).count(), 2, "{row}");
    place.octet(&["doctor", "--device", &format!("{one}+{one}")]).fails(1, &["one by one"]);
}

/// Sizes that no flag sets are fitted to the device's memory, and no loaded model uses more than was reported.
#[test]
fn a_model_is_made_to_fit_a_graphics_device() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let device = format!("vulkan:{index}");
    let place = Place::with_model("qwen35moe", "q4_k_m");
    let show = |more: &[&str]| -> Value {
        let args = ["show", "model.gguf", "--device", &device, "--json"];
        let text = place.octet(&[&args[..], more].concat()).ok().stdout;
        serde_json::from_str::<Value>(&text).unwrap()["devices"][0].clone()
    };
    let gib = |bytes: u64| format!("{:.9}", bytes as f64 / f64::from(1 << 30));
    let run = |gpu_memory: &str, more: &[&str]| {
        let args = ["run", "model.gguf", "--raw", "t1 t2", "-n", "4", "--temp", "0", "--device", &device];
        place.octet(&[&args[..], &["--gpu-memory", gpu_memory], more].concat())
    };
    for kv in ["f16", "q8_0", "f32"] {
        let flags = ["-c", "100000", "--kv-cache-dtype", kv];
        let bytes = show(&flags)["device_bytes"].as_u64().unwrap();
        let enough = run(&gib(bytes + 1000), &flags).ok();
        assert!(enough.stderr.contains("context of 100000 tokens"), "{}", enough.stderr);
        let smaller =
            |text: &str| text.contains("is not loaded") || text.contains("are in the machine's memory");
        assert!(!smaller(&enough.stderr), "{}", enough.stderr);
        let less = run(&gib(bytes - (1 << 20)), &flags).ok();
        assert!(smaller(&less.stderr), "{}", less.stderr);
        assert_eq!(enough.stdout, less.stdout, "what was made smaller changes nothing");
        run(&gib(bytes / 2), &flags)
            .fails(1, &["does not fit", &device, "--gpu-memory allows", "--ctx-size"]);
    }
    // `show` reports the same without loading
    let little = show(&["-c", "100000", "--gpu-memory", "0.05"]);
    assert_eq!((&little["fits"], &little["expert_slots"]), (&false.into(), &Value::Null));
    let text =
        place.octet(&["show", "model.gguf", "--device", &device, "-c", "100000", "--gpu-memory", "0.05"]);
    assert!(text.ok().stdout.contains("cannot load it there"));
}

/// The built-in model generates the same text on a device as on the processor, until two tokens are equally probable.
#[test]
fn the_built_in_model_answers_alike_on_a_graphics_device() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let place = Place::new();
    let tokens = |prompt: &str, device: &str| -> Vec<Value> {
        let args =
            ["run", "fox", prompt, "--temp", "0", "-n", "150", "--json", "--logprobs", "2", "--device"];
        let json = place.octet(&[&args[..], &[device]].concat()).ok().stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        json["logprobs"]["content"].as_array().unwrap().clone()
    };
    for prompt in ["Tell me a story about a fox.", "Why is the sky blue?"] {
        let (own, card) = (tokens(prompt, "cpu"), tokens(prompt, &format!("vulkan:{index}")));
        let logprob = |token: &Value| token["logprob"].as_f64().unwrap();
        let same = own.iter().zip(&card).take_while(|(a, b)| a["id"] == b["id"]);
        let same = same.inspect(|(a, b)| assert!((logprob(a) - logprob(b)).abs() < 0.1, "{a} {b}")).count();
        assert!(same >= 10, "{prompt}");
        if let Some(parts) = own.get(same) {
            let [first, second] = [0, 1].map(|i| logprob(&parts["top_logprobs"][i]));
            assert!(first - second < 0.05, "after {same} tokens of '{prompt}': {parts}");
        }
    }
}

/// No loader, no driver, an unreadable driver file: each is an error for a named device, and a note for `auto`, which runs on the
/// processor.
#[test]
fn a_broken_driver_is_named_and_the_processor_is_used() {
    let place = Place::new();
    let damaged = place.write("damaged.json", "{");
    let lost = place.write(
        "lost.json",
        r#"{"file_format_version": "1.0.0", "ICD": {"library_path": "/nowhere/driver.so", "api_version": "1.3.0"}}"#,
    );
    for driver in [&damaged, &lost, &place.path("none.json")] {
        // The second is the name of older loaders.
        let variables = [("VK_DRIVER_FILES", str(driver)), ("VK_ICD_FILENAMES", str(driver))];
        let octet = |args: &[&str]| place.octet_with(args, "", &variables);
        let devices = octet(&["devices"]).ok().stdout;
        let why = devices.split_once("no graphics device: ").expect(&devices).1.trim();
        assert!(
            devices.starts_with("cpu ") && (why.contains("install") || why.contains("VK_LOADER_DEBUG")),
            "{why}"
        );
        let run = ["run", "fox", "Hello", "-n", "2", "--temp", "0"];
        octet(&[&run[..], &["--device", "vulkan:0"]].concat()).fails(1, &["Vulkan"]);
        let auto = octet(&[&run[..], &["--verbose"]].concat()).ok().stderr;
        assert!(auto.contains("on CPU") && auto.contains(why), "{auto}");
    }
}
